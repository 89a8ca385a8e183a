"""What rollouts of CrewAI's objects would share, and what a process of one attempt gets of its own."""

import os
import sqlite3
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.events import BaseEventListener, CrewKickoffStartedEvent, crewai_event_bus
from crewai.flow.flow import Flow, start
from crewai.hooks import InterceptionPoint, register_hook, unregister_hook
from crewai.tools import BaseTool, tool

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects
from leyden.crewai._isolated import STORAGE, own_storage

model = LLM(model="gpt-4o-mini", api_key="any")
history: list[Any] = []


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def note(text: str) -> int:
    """Keep a note."""
    history.append(text)
    return len(history)


class Counter(BaseTool):
    name: str = "counter"
    description: str = "Counts."
    turns: int = 0

    def _run(self) -> int:
        self.turns += 1
        return self.turns


class Once(BaseTool):
    name: str = "once"
    description: str = "Answers once."
    max_usage_count: int | None = 1

    def _run(self) -> int:
        return 1


def new_crew(*tools: Any, **options: Any) -> Crew:
    agent = Agent(role="solver", goal="Answer", backstory="Exact.", llm=model, tools=list(tools))
    task = Task(description="{question}", expected_output="x", agent=agent)
    return Crew(agents=[agent], tasks=[task], **options)


def crew_of(*tools: Any, **options: Any) -> Crew:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CrewAI reads deprecated fields of its own
        return new_crew(*tools, **options)


def after(result: Any) -> Any:
    history.append(result)
    return result


plain: Any = crew_of(add)


class Plain(Flow[dict[str, Any]]):
    @start()
    def answer(self) -> str:
        return str(plain.key) if self.state.get("never") else "x"


class Quiet(Flow[dict[str, Any]]):
    @start()
    def answer(self) -> str:
        return "x"


def kicks_off(task: Any) -> Any:
    return plain.kickoff(inputs=task)


def makes_a_crew() -> Any:
    return new_crew(add)


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("agent", [plain, makes_a_crew, Quiet, plain.agents[0]])
def test_what_is_copied_or_made_anew_is_shared_without_harm(agent: Any) -> None:
    assert found(agent) == []


def test_a_flow_that_was_made_before_is_shared_without_harm() -> None:
    assert found(Quiet()) == []  # made here: the first one imports CrewAI's database, for seconds


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (crew_of(note), "history (list), which note()"),
        (crew_of(Counter()), "counter (Counter)"),
        (crew_of(Once()), "once (Once)"),
        (crew_of(add, after_kickoff_callbacks=[after]), "history (list), which after()"),
        (kicks_off, "plain (Crew), which kicks_off()"),
        (Plain, "plain (Crew), which answer()"),
    ],
)
def test_what_may_remember_is_named(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)


class Listener(BaseEventListener):
    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__()

    def setup_listeners(self, crewai_event_bus: Any) -> None:
        @crewai_event_bus.on(CrewKickoffStartedEvent)
        def on_crew_started(source: Any, event: CrewKickoffStartedEvent) -> None:
            self.seen.append(str(event.crew_name))


@contextmanager
def listening() -> Generator[None]:
    with crewai_event_bus.scoped_handlers():
        Listener()
        yield


@contextmanager
def hooked() -> Generator[None]:
    register_hook(InterceptionPoint.INPUT, after)
    try:
        yield
    finally:
        unregister_hook(InterceptionPoint.INPUT, after)


@pytest.mark.parametrize("agent", [plain, Quiet, plain.agents[0]])
@pytest.mark.parametrize(
    ("registered", "name"), [(listening, "self (Listener)"), (hooked, "history (list), which after()")]
)
def test_what_crewai_calls_for_every_crew_is_named(agent: Any, registered: Any, name: str) -> None:
    with registered():
        assert any(name in line for line in found(agent)), found(agent)
    assert found(agent) == []


def test_what_is_stored_is_copied_while_others_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "stored"
    (stored / "memory").mkdir(parents=True)
    (stored / "memory" / "one.lance").write_text("kept")
    (stored / "gone.db-shm").symlink_to(tmp_path / "nowhere")
    (stored / "memory" / "gone.lance").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv(STORAGE, str(stored))
    with closing(sqlite3.connect(stored / "tasks.db", isolation_level=None)) as theirs:
        theirs.execute("PRAGMA journal_mode=WAL")
        theirs.execute("CREATE TABLE tasks (name TEXT)")
        theirs.execute("INSERT INTO tasks VALUES ('first')")
        own_storage(tmp_path / "attempt")
    own = Path(os.environ[STORAGE])
    with closing(sqlite3.connect(own / "tasks.db")) as ours:
        assert ours.execute("SELECT name FROM tasks").fetchall() == [("first",)]
    assert sorted(str(path.relative_to(own)) for path in own.rglob("*")) == ["memory", "memory/one.lance", "tasks.db"]


def test_a_process_of_its_own_begins_with_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "stored"
    stored.mkdir()
    (stored / "memory.db").write_text("before")
    monkeypatch.setenv(STORAGE, str(stored))
    own_storage(tmp_path / "attempt")
    own = Path(os.environ[STORAGE])
    assert own.is_relative_to(tmp_path / "attempt")
    (own / "memory.db").write_text((own / "memory.db").read_text() + ", and after")
    assert (stored / "memory.db").read_text() == "before"
