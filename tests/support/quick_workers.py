"""A pytest plugin: worker processes that begin at once, as forks of one that has loaded what workers need.

For tests that start many workers, and are not about what a worker is given or leaves: a fork has the environment that
`/proc` shows of its template, and the template ends what a fork leaves. There a test starts a new Python.
"""

import sys
from collections.abc import Generator
from types import ModuleType
from typing import cast

import forks
import pytest


@pytest.fixture(scope="module")
def forked_python(request: pytest.FixtureRequest) -> Generator[str]:
    """A program that is Python, but for workers, which have loaded what the file's `LOADED_BY_WORKERS` names."""
    file = cast("ModuleType", request.module)  # pyright: ignore[reportUnknownMemberType]  # pytest gives it no type
    more: tuple[str, ...] = getattr(file, "LOADED_BY_WORKERS", ())
    with forks.template(["leyden.core.runner.workers.worker", "httpx", *more]) as python:
        yield python


@pytest.fixture
def quick_workers(forked_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the workers of a test's pools be forks."""
    monkeypatch.setattr(sys, "executable", forked_python)
