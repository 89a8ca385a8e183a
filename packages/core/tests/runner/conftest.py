"""Worker processes that begin at once: forks of one that has loaded what workers need."""

import sys
from collections.abc import Generator

import pytest
from forks import template


@pytest.fixture(scope="module")
def forked_python() -> Generator[str]:
    """A program that is Python, but for workers."""
    with template(["leyden.core.runner.worker", "httpx"]) as python:
        yield python


@pytest.fixture
def quick_workers(forked_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the test's worker pools start it."""
    monkeypatch.setattr(sys, "executable", forked_python)
