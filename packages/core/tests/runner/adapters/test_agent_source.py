import functools
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import BaseModel

from leyden.core.data import semconv
from leyden.core.data.resources import Resource
from leyden.core.errors import TaskError, UnknownAgent
from leyden.core.runner.adapters import finding, registry
from leyden.core.runner.adapters.agent_tracer import AgentTracer
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import FunctionAdapter, LitAgentAdapter
from leyden.core.runner.adapters.finding import AgentSource, find_adapter
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.testing.running import error_of, rewards_in, run_one
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.wire.unsupported_clients import CALLED


class Remembering(LitAgent[Any]):
    def __init__(self) -> None:
        self.memory: list[int] = []

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return 0.0


class Greedy(Adapter):
    """Supports everything that is a list."""

    name = "greedy"

    def supports(self, agent: object) -> bool:
        return isinstance(agent, list | LitAgent)

    def fresh(self, agent: Any) -> Any:
        return agent.copy()

    def check(self, agent: Any, task: Any) -> None:
        pass

    async def run(self, agent: Any, task: Any, resources: Mapping[str, Resource]) -> Any:
        return agent

    def instrument(self) -> None:
        pass

    def uninstrument(self) -> None:
        pass

    def callback_handler(self) -> object:
        return "the handler"


class Nosy(Greedy):
    """Cannot look at anything."""

    name = "nosy"

    def supports(self, agent: object) -> bool:
        raise RuntimeError("cannot look")


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def installed(*found: Adapter) -> None:
        monkeypatch.setattr(finding, "installed_adapters", lambda: found)

    installed()
    return installed


def agent(task: Any) -> Any:
    return task


async def async_agent(task: Any) -> Any:
    return task


def test_built_in_adapters_know_their_own(install: Install) -> None:
    assert isinstance(find_adapter(Remembering()), LitAgentAdapter)
    given: list[Any] = [agent, async_agent, functools.partial(agent), "".join]
    for function in given:
        assert isinstance(find_adapter(function), FunctionAdapter)


@pytest.mark.parametrize("thing", [{"a": 1}, 3, None, max, object(), int])
def test_an_unknown_object_is_named_with_the_adapters(install: Install, thing: Any) -> None:
    install(Greedy())
    with pytest.raises(UnknownAgent) as error:
        find_adapter(thing, called="agent.py:agent")
    message = str(error.value)
    assert type(thing).__name__ in message
    assert "agent.py:agent" in message
    assert "greedy, lit_agent, command, function, vote" in message
    assert "\n" not in message


def test_an_installed_adapter_comes_before_a_built_in_one(install: Install) -> None:
    install(Greedy())
    assert find_adapter(Remembering()).name == "greedy"


def test_an_adapter_that_cannot_look_is_passed_over(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install(Nosy(), Greedy())
    with caplog.at_level(logging.WARNING):
        assert find_adapter([]).name == "greedy"
    assert "nosy" in caplog.text


def test_a_broken_entry_point_is_logged_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = registry.GROUP
    here = EntryPoint(name="b", value=f"{LitAgentAdapter.__module__}:LitAgentAdapter", group=group)
    broken = EntryPoint(name="a", value="no_such_package_here:Adapter", group=group)
    odd = EntryPoint(name="c", value="builtins:dict", group=group)

    def entry_points(group: str) -> list[EntryPoint]:
        return [entry for entry in (here, broken, odd) if entry.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    with caplog.at_level(logging.WARNING):
        found = installed_adapters.__wrapped__()
    assert [adapter.name for adapter in found] == ["lit_agent"]
    assert "no_such_package_here" in caplog.text
    assert "builtins:dict" in caplog.text


def test_a_lit_agent_is_copied_for_each_attempt(install: Install) -> None:
    source = AgentSource.of(Remembering())
    first, second = source.fresh(), source.fresh()
    first.memory.append(1)
    assert second.memory == []
    assert source.agent.memory == []


def test_an_agent_that_cannot_be_copied_is_shared_with_a_warning(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    given = Remembering()
    lock = given.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue] -- what users do
    source = AgentSource.of(given)
    with caplog.at_level(logging.WARNING):
        fresh = source.fresh()
        source.fresh()
    assert fresh is not given
    assert fresh.lock is lock
    assert len(caplog.records) == 1


def test_a_factory_is_called_for_each_attempt(install: Install) -> None:
    install(Greedy())
    made: list[list[int]] = []

    def make() -> list[int]:
        made.append([])
        return made[-1]

    source = AgentSource.of(make)
    assert source.adapter.name == "greedy"
    source.fresh()
    source.fresh()
    assert len(made) == 3


def test_a_lit_agent_class_is_a_factory(install: Install) -> None:
    source = AgentSource.of(Remembering)
    assert isinstance(source.fresh(), Remembering)


def test_a_factory_that_fails_is_a_usage_error(install: Install) -> None:
    def make() -> Any:
        raise KeyError("no key")

    with pytest.raises(UnknownAgent, match=r"make failed: KeyError: 'no key'"):
        AgentSource.of(make)


def test_a_factory_that_reads_the_command_line_is_a_usage_error(install: Install) -> None:
    def make() -> Any:
        sys.exit(2)  # as `argparse` does

    with pytest.raises(UnknownAgent, match=r"make failed: SystemExit: 2 \(.*line"):
        AgentSource.of(make)


def test_what_a_factory_makes_must_be_an_agent(install: Install) -> None:
    def make() -> int:
        return 3

    with pytest.raises(UnknownAgent, match=r"what .*make\(\) returns is of type int"):
        AgentSource.of(make)


class Solver:
    """An agent as users write it, with its model's name as a setting."""

    def __init__(self, model: str = "m") -> None:
        self.model = model

    def __call__(self, question: str) -> str:
        return f"{self.model}: {question}"

    def ask(self, question: str) -> str:
        return self(question)


@dataclass
class Answering:
    model: str = "m"

    async def __call__(self, task: Any) -> str:
        return f"{self.model}: {task['question']}"


class Configured(BaseModel):
    model: str = "m"

    def run(self, question: str) -> str:
        return f"{self.model}: {question}"


class Running:
    async def run(self, task: str, max_steps: int = 5) -> str:
        return f"m: {task}"


class Asked:
    def __init__(self, model: str) -> None:
        self.model = model

    def ask(self, question: str) -> str:
        return question


def makes(model: str = "m") -> Solver:
    return Solver(model)


async def makes_later() -> Solver:
    return Solver()


async def makes_later_with(model: str = "m", *, size: int = 3) -> Solver:
    return Solver(model)


def takes_named(question: str, id: int) -> str:
    return f"m: {question}"


def takes_all(**row: Any) -> str:
    return f"m: {row['question']}"


def takes_optional(question: str = "") -> str:
    return f"m: {question}"


GIVEN: list[Any] = [
    *(Solver(), Solver, Answering(), Answering, Configured(), Configured, Running(), Running),
    *(Solver().ask, functools.partial(Solver.ask, Solver()), makes, makes_later, makes_later_with),
    *(takes_named, takes_all, takes_optional),
]


@pytest.mark.parametrize("given", GIVEN)
async def test_whatever_can_be_called_for_a_task_is_an_agent(given: Any) -> None:
    ended, spans = await run_one(given, {"question": "2+2?", "id": 7, "answer": "4"})
    assert ended.status == "succeeded", error_of(ended)
    assert [s.attributes[semconv.RESULT] for s in spans if s.name == semconv.RESULT] == ["m: 2+2?"]


def tells() -> str:
    return "four"


def reaches_nothing() -> str:
    raise ConnectionError("no server at localhost:1")


def tells_by(model: str = "m") -> str:
    return "four"


class Empty:
    pass


class Asking:
    def ask(self, question: str) -> str:
        return question


class Nothing:
    def run(self) -> str:
        return "four"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Asked, "bot.py:agent is a class whose constructor needs arguments, Asked(model: str): give an object, or"),
        (Asked("m"), "its method Asked.ask(question: str) could run it: name bot.py:agent.ask"),
        (Solver.ask, "it is the method Solver.ask(self, question: str) of a class; name the method of an object"),
        (Nothing(), "Nothing.run() has no parameter for a task"),
        (max, "its signature is unknown to Python; give a function that takes a task and calls it"),
        (Asking, "create an object of the class, and name its method, as in file.py:asking.ask"),
        (Empty, "what bot.py:agent() returns is of type"),
        (
            tells,
            "tells() needs no argument, so Leyden calls it to make the agent; if it is the agent, give it a "
            "parameter for the task",
        ),
        (tells_by, "tells_by(model: str = 'm') needs no argument, so Leyden calls it to make the agent"),
        (reaches_nothing, "failed: ConnectionError: no server at localhost:1 ("),
        (
            reaches_nothing,
            "reaches_nothing() needs no argument, so Leyden calls it to make the agent; if it is the "
            "agent, give it a parameter",
        ),
        ({"a": 1}, "a function of a task, or a function that makes one"),
    ],
)
def test_what_is_no_agent_says_what_to_give_instead(install: Install, given: Any, says: str) -> None:
    with pytest.raises(UnknownAgent) as error:
        AgentSource.of(given, called="bot.py:agent")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


async def makes_nothing() -> int:
    return 3


async def makes_a_failure() -> Any:
    raise KeyError("MY_API_KEY")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (makes_nothing, r"what makes_nothing\(\) returns is of type int"),
        (makes_a_failure, r"the factory makes_a_failure failed: KeyError: 'MY_API_KEY' \(.*\); .* MY_API_KEY=unused"),
    ],
)
async def test_an_async_factory_that_makes_no_agent_fails_its_attempt(given: Any, says: str) -> None:
    ended, _ = await run_one(given)
    assert error_of(ended)["type"] == "UnknownAgent"
    assert re.search(says, error_of(ended)["message"])


async def test_an_async_factory_of_lit_agents_returns_rewards() -> None:
    class Scored(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 0.5

    async def make() -> Scored:
        return Scored()

    ended, spans = await run_one(make)
    assert ended.status == "succeeded", error_of(ended)
    assert rewards_in(spans) == [0.5]


class Framework(Greedy):
    """Its agents are lists."""

    def supports(self, agent: object) -> bool:
        return isinstance(agent, list)

    def check(self, agent: Any, task: Any) -> None:
        if task == "unfit":
            raise TaskError("unfit")

    async def run(self, agent: Any, task: Any, resources: Mapping[str, Resource]) -> Any:
        return f"ran {agent} on {task}"


@pytest.mark.parametrize("called", [False, True])
async def test_an_agent_that_a_function_makes_for_a_task_is_run_unless_it_was(
    monkeypatch: pytest.MonkeyPatch, called: bool
) -> None:
    monkeypatch.setattr(registry, "installed_adapters", lambda: (Framework(),))

    def agent(task: Any) -> list[str]:
        attempt = current_attempt()
        assert attempt is not None
        if called:
            attempt.extra[CALLED] = True
        return ["agent"]

    ended, spans = await run_one(agent, "task")
    assert ended.status == "succeeded"
    (result,) = [s.attributes[semconv.RESULT] for s in spans if s.name == semconv.RESULT]
    assert result == ("['agent']" if called else "ran ['agent'] on task")
    if not called:
        ended, _ = await run_one(agent, "unfit")
        assert error_of(ended)["message"] == "unfit"


def test_the_tracer_hands_out_the_adapters_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    class LangChain(Greedy):
        name = "langchain"

    monkeypatch.setattr(registry, "installed_adapters", lambda: (LangChain(),))
    assert Remembering().tracer.get_langchain_handler() == "the handler"
    monkeypatch.setattr(registry, "installed_adapters", lambda: ())
    with pytest.raises(UnknownAgent, match="pip install leyden-langchain"):
        AgentTracer().get_langchain_handler()


@pytest.mark.integration
def test_the_runner_imports_no_framework() -> None:
    code = (
        "import sys, leyden.core.runner.runner\n"
        "print([m for m in ('torch', 'numpy', 'langchain_core', 'langgraph', 'openai') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


class Idle(LitAgent[Any]):
    def answer(self, task: Any) -> str:
        return "never called"


@pytest.mark.parametrize("given", [Idle(), Idle])
def test_a_lit_agent_that_runs_nothing_is_refused(given: Any) -> None:
    with pytest.raises(UnknownAgent, match="Idle overrides neither rollout nor rollout_async"):
        AgentSource.of(given)


@pytest.mark.parametrize("name", ["rollout", "rollout_async", "training_rollout", "validation_rollout_async"])
def test_one_method_is_enough(name: str) -> None:
    def own(self: Any, task: Any, resources: Any, rollout: Any) -> float:
        return 1.0

    assert isinstance(AgentSource.of(type("Own", (LitAgent,), {name: own})()).adapter, LitAgentAdapter)
