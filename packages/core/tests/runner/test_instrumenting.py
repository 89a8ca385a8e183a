"""Which adapters record: the agent's own, and those of other frameworks that it has loaded or loads later."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.runner import instrumenting
from leyden.core.runner.adapter import Adapter
from leyden.core.runner.instrumenting import instrument_all


class Noting(Adapter):
    def __init__(self, name: str, module: str | None = None, *, fails: bool = False) -> None:
        self.name, self.module, self._fails = name, module, fails
        self.on = False

    def supports(self, agent: object) -> bool:
        return False

    def fresh(self, agent: Any) -> Any:
        return agent

    def check(self, agent: Any, task: Task) -> None:
        return None

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        return None

    def instrument(self) -> None:
        if self._fails:
            raise RuntimeError("no")
        self.on = True

    def uninstrument(self) -> None:
        self.on = False


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("framework_here", "framework_later", "framework_after"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.import_module("framework_here")
    yield
    for name in ("framework_here", "framework_later", "framework_after"):
        sys.modules.pop(name, None)


def installed(monkeypatch: pytest.MonkeyPatch, *adapters: Adapter) -> None:
    monkeypatch.setattr(instrumenting, "installed_adapters", lambda: adapters)


def test_frameworks_are_recorded_once_they_are_loaded(modules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    own, here = Noting("own"), Noting("here", "framework_here")
    later, after = Noting("later", "framework_later"), Noting("after", "framework_after")
    installed(monkeypatch, own, here, later, after)
    undo = instrument_all(own)
    assert [one.on for one in (own, here, later)] == [True, True, False]
    importlib.import_module("framework_later")
    assert later.on
    undo()
    undo()
    assert not any(one.on for one in (own, here, later))
    importlib.import_module("framework_after")
    assert not after.on


def test_a_framework_that_cannot_be_recorded_does_not_stop_the_agent(
    modules: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = Noting("own")
    installed(monkeypatch, own, Noting("broken", "framework_here", fails=True))
    instrument_all(own)()
    assert "adapter 'broken' cannot record its framework" in caplog.text


def test_the_agents_own_adapter_must_work(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(RuntimeError, match="no"):
        instrument_all(Noting("own", fails=True))
