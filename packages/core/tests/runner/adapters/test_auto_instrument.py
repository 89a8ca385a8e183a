"""Which adapters record: the agent's own, and those of other frameworks that it has loaded or loads later."""

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.runner.adapters import auto_instrument, finding
from leyden.core.runner.adapters.auto_instrument import instrument_all, try_again
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.adapters.registry import installed_adapters


class Noting(Adapter):
    def __init__(self, name: str, module: str | None = None, *, fails: bool = False) -> None:
        self.name, self.module, self.fails = name, module, fails
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
        if self.fails:
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
    monkeypatch.setattr(auto_instrument, "installed_adapters", lambda: adapters)


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
    undo = instrument_all(own)
    assert not caplog.records
    try_again()
    try_again()
    assert caplog.text.count("adapter 'broken' cannot record its framework") == 1
    undo()


def test_a_framework_that_could_not_be_recorded_at_its_import_is_before_the_next_attempt(
    modules: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own, broken = Noting("own"), Noting("broken", "framework_here", fails=True)
    installed(monkeypatch, own, broken)
    monkeypatch.setattr(finding, "installed_adapters", lambda: ())
    undo = instrument_all(own)
    broken.fails = False
    AgentSource.of(lambda task: task).fresh()  # pyright: ignore[reportUnknownLambdaType] -- what users write
    assert broken.on
    assert not caplog.records
    undo()
    assert not broken.on


EXPLICIT = """
import logging, sys
from leyden.core.runner.adapters.builtin import FunctionAdapter
from leyden.core.runner.adapters.auto_instrument import instrument_all, try_again
from leyden.core.runner.adapters.registry import installed_adapter

logging.basicConfig(level=logging.INFO)
logging.getLogger().setLevel(logging.WARNING)
logging.getLogger("leyden").setLevel(logging.INFO)
adapter, made = installed_adapter(sys.argv[1]), []
instrument, adapter.instrument = adapter.instrument, lambda: (instrument(), made.append(1))
instrument_all(FunctionAdapter())
print(type(adapter.callback_handler()).__name__)
__import__(adapter.module)
print(len(made))
"""


@pytest.mark.parametrize("name", [adapter.name for adapter in installed_adapters()])
def test_the_explicit_form_may_be_what_loads_the_framework(name: str) -> None:
    """As in `self.tracer.get_langchain_handler()` of an agent that imports LangChain later."""
    done = subprocess.run([sys.executable, "-c", EXPLICIT, name], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"
    assert "leyden" not in done.stderr, done.stderr


def test_the_agents_own_adapter_must_work(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(RuntimeError, match="no"):
        instrument_all(Noting("own", fails=True))
