"""Every kind of object: what it is given, what a fresh one remembers, how it ends. Models answer in this process."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUntypedClassDecorator=false, reportUntypedBaseClass=false

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from crewai import Agent, BaseLLM, Crew, Flow, Task
from crewai.flow.flow import listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.flow.persistence import persist as persisted
from crewai.memory.unified_memory import Memory
from crewai.project import CrewBase, agent, before_kickoff, crew, task
from crewai.telemetry import Telemetry
from crewai.tools import tool
from pydantic import BaseModel

from leyden.core.errors import TaskError, UnknownAgent
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.user_code.task_input import MadeInput
from leyden.crewai import CrewAIAdapter

ADAPTER = CrewAIAdapter()


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CrewAI keeps its databases below the user's own folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


class Echo(BaseLLM):
    """Says what it was asked last."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return messages if isinstance(messages, str) else str(messages[-1]["content"])


def member(role: str = "solver", **more: Any) -> Any:
    return Agent(role=role, goal="answer", backstory="You work.", llm=Echo(model="echo"), max_retry_limit=0, **more)


def crew_of(*descriptions: str, **more: Any) -> Any:
    worker = member(**more.pop("worker", {}))
    tasks: list[Any] = [Task(description=text, expected_output="words", agent=worker) for text in descriptions]
    return Crew(agents=[worker], tasks=tasks, **more)


class Poem(BaseModel):
    question: str = ""
    lines: int = 1
    answer: str = ""


class PoemFlow(Flow[Poem]):
    @start()
    def write(self) -> Any:
        return self.state.model_dump(exclude={"id"})


class MixedFlow(Flow[Poem]):
    """One step is sync, one is awaited, and one runs a crew as either kind of author would."""

    @start()
    def first(self) -> Any:
        return crew_of("sync {question}").kickoff({"question": self.state.question}).raw

    @listen(first)
    async def second(self, before: str) -> Any:
        await asyncio.sleep(0)
        inner: Any = await crew_of("async {question}").kickoff_async({"question": self.state.question})
        return f"{before} {inner.raw}"


class LooseFlow(Flow[dict[str, Any]]):
    @start()
    def write(self) -> Any:
        return {key: value for key, value in self.state.items() if key != "id"}


async def result_of(given: Any, row: Any) -> Any:
    fresh = ADAPTER.fresh(given)
    ADAPTER.check(fresh, row)
    result = await ADAPTER.run(fresh, row, {})
    return getattr(result, "raw", result)


@pytest.mark.parametrize("row", [{key: "hi"} for key in ("question", "input", "prompt", "query", "text", "problem")])
async def test_the_text_of_a_row_fills_the_only_placeholder(row: dict[str, str]) -> None:
    assert "Task: say hi\n" in await result_of(crew_of("say {it}"), {**row, "answer": "42"})
    assert "Task: say hi\n" in await result_of(crew_of("say {it}"), "hi")


async def test_placeholders_are_matched_by_name_and_other_braces_left_alone() -> None:
    wanting = crew_of('{wish} as {"json": 1}', worker={"role": "a {trade}"})
    told = await ADAPTER.run(ADAPTER.fresh(wanting), {"wish": "sing", "trade": "bard", "answer": 1}, {})
    assert 'Task: sing as {"json": 1}\n' in told.raw
    assert told.tasks_output[0].agent == "a bard"
    assert "Task: 42\n" in await result_of(crew_of("{answer}"), {"answer": 42})


async def test_sync_and_async_steps_and_tasks_run_in_one_attempt() -> None:
    said = await result_of(MixedFlow(), {"question": "hi"})
    assert "Task: sync hi" in said
    assert "Task: async hi" in said
    worker = member()
    tasks: list[Any] = [
        Task(description="say {it}", expected_output="words", agent=worker, async_execution=later)
        for later in (False, True)
    ]
    assert "say hi" in await result_of(Crew(agents=[worker], tasks=tasks), "hi")


async def test_a_lone_agent_takes_a_text_or_messages() -> None:
    for row in ("hi", {"question": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}):
        assert "hi" in await result_of(member(), row)


async def test_a_flow_takes_what_its_state_has_a_place_for() -> None:
    row = {"question": "tea", "lines": 3, "answer": "no", "id": "row-7", "other": 1}
    assert await result_of(PoemFlow(), row) == {"question": "tea", "lines": 3, "answer": ""}
    assert await result_of(PoemFlow, "tea") == {"question": "tea", "lines": 1, "answer": ""}
    assert await result_of(LooseFlow(), row) == {"question": "tea", "lines": 3, "other": 1}
    assert await result_of(LooseFlow(), MadeInput(answer=1)) == {"answer": 1}


@pytest.mark.parametrize(
    ("make", "row", "words"),
    [
        (lambda: crew_of("{a} {b}"), {"a": 1}, ["the keys a", "takes b"]),
        (lambda: crew_of("{a}"), {"id": 1}, ["the keys id", "takes a"]),
        (lambda: crew_of("speak"), {"id": 1}, ["the keys id", "placeholder"]),
        (PoemFlow, {"body": 1}, ["the keys body", "question"]),
        (LooseFlow, {"answer": 1}, ["the keys answer"]),
        (member, {"id": 1}, ["the keys id", "question"]),
    ],
    ids=["one missing", "none fits", "no placeholder", "state", "no state", "agent"],
)
def test_a_row_that_does_not_fit_is_an_error_that_names_its_keys(make: Any, row: Any, words: list[str]) -> None:
    with pytest.raises(TaskError) as error:
        ADAPTER.check(make(), row)
    assert all(word in str(error.value) for word in words), error.value


@CrewBase
class School:
    """As CrewAI's own template writes it, with its configuration inline."""

    agents_config: ClassVar[Any] = {}
    tasks_config: ClassVar[Any] = {}

    @before_kickoff
    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {**inputs, "year": 2026}

    @agent
    def scholar(self) -> Any:
        return member("scholar")

    @task
    def study(self) -> Any:
        return Task(description="{topic} in {year}", expected_output="words", agent=self.scholar())  # pyright: ignore[reportCallIssue]  # the decorator binds it

    @crew
    def crew(self) -> Any:
        return Crew(agents=self.agents, tasks=self.tasks)  # pyright: ignore[reportAttributeAccessIssue]  # the decorator's


@pytest.mark.filterwarnings("ignore:function callbacks cannot be serialized:UserWarning")  # as @CrewBase makes them
async def test_a_crewbase_class_its_objects_and_its_crew_are_all_the_crew() -> None:
    made: Any = School()
    for given in (School, made, made.crew()):
        assert ADAPTER.supports(given)
        for topic in ("tea", "tin"):
            assert f"Task: {topic} in 2026\n" in await result_of(given, {"topic": topic, "answer": "no"})


def test_it_knows_crews_flows_and_agents_and_nothing_else() -> None:
    for given in (crew_of("x"), PoemFlow(), PoemFlow, member(), School):
        assert ADAPTER.supports(given)
    for other in (Crew, Agent, Task(description="x", expected_output="y"), Echo(model="echo"), Poem, print, "crew"):
        assert not ADAPTER.supports(other)


async def test_a_crew_that_ran_before_is_fresh_again() -> None:
    ran = crew_of("{a}", worker={"role": "{b}"})
    await ADAPTER.run(ran, {"a": "old", "b": "older"}, {})
    told = await ADAPTER.run(ADAPTER.fresh(ran), {"a": "new", "b": "newer"}, {})
    assert "Task: new\n" in told.raw and "old" not in told.raw
    assert told.tasks_output[0].agent == "newer"


async def test_agents_of_one_role_stay_two() -> None:
    agents = [member(), member()]
    agents[1].goal = "sing"
    tasks: list[Any] = [Task(description="{a}", expected_output="words", agent=one) for one in agents]
    fresh = ADAPTER.fresh(Crew(agents=agents, tasks=tasks))
    assert [task.agent.goal for task in fresh.tasks] == ["answer", "sing"]
    assert not any(one is other for one in agents for other in fresh.agents)


async def test_a_fresh_crew_keeps_its_callbacks_and_sends_no_traces() -> None:
    given = crew_of("{a}", tracing=True, before_kickoff_callbacks=[prepared], task_callback=print)
    fresh = ADAPTER.fresh(given)
    assert (fresh.tracing, fresh.before_kickoff_callbacks, fresh.task_callback) == (False, [prepared], print)
    assert given.tracing is True


async def test_a_fresh_crew_writes_no_log_and_deletes_none() -> None:
    given = crew_of("{a}")
    await ADAPTER.run(given, {"a": "kept"}, {})
    log: Any = given._task_output_handler
    kept = log.load()
    assert [row["inputs"] for row in kept] == [{"a": "kept"}]
    told = await ADAPTER.run(ADAPTER.fresh(given), {"a": "new"}, {})
    assert "Task: new\n" in told.raw
    assert log.load() == kept


def prepared(inputs: Any) -> Any:
    return inputs


async def test_a_flow_starts_anew_whatever_the_row_is_called() -> None:
    class Counting(Flow[dict[str, Any]]):
        @start()
        def count(self) -> Any:
            self.state["count"] = self.state.get("count", 0) + 1
            return self.state["count"]

    kept: Any = persisted(SQLiteFlowPersistence())(Counting)
    for _ in range(2):
        assert await result_of(kept(), {"id": "row-7", "question": "x"}) == 1


async def test_each_flow_remembers_in_a_place_of_its_own() -> None:
    scopes = {ADAPTER.fresh(PoemFlow()).memory.root_scope for _ in range(3)}
    assert len(scopes) == 3


class Demanding(Flow[dict[str, Any]]):
    def __init__(self, wish: str) -> None:
        super().__init__()

    @start()
    def write(self) -> None:
        return None


class Own(Crew):
    """A crew of a class of its own."""


def own_crew() -> Any:
    worker = member()
    return Own(agents=[worker], tasks=[Task(description="x", expected_output="y", agent=worker)])


@pytest.mark.parametrize(("make", "words"), [(lambda: Demanding("x"), "wish"), (own_crew, "Own cannot be copied")])
def test_what_cannot_be_made_anew_serves_once_so_that_a_function_can_make_it(make: Any, words: str) -> None:
    source = AgentSource.of(make)
    assert isinstance(source.fresh(), type(source.agent))
    assert source.fresh() is not source.fresh()
    alone = AgentSource.of(make())
    assert alone.fresh() is alone.agent
    with pytest.raises(UnknownAgent, match=f"{words}.*a function that makes it"):
        alone.fresh()
    with pytest.raises(UnknownAgent, match="needs arguments"):
        ADAPTER.check(Demanding, "x")


def test_agents_that_wait_for_a_human_are_refused() -> None:
    asking = crew_of("{a}")
    asking.tasks[0].human_input = True
    with pytest.raises(UnknownAgent, match="human input at task 0"):
        ADAPTER.check(asking, "x")

    class Asking(Flow[dict[str, Any]]):
        @start()
        @human_feedback(message="may I?")
        def wonder(self) -> str:
            return "?"

    with pytest.raises(UnknownAgent, match="human input at 'wonder'"):
        ADAPTER.check(Asking(), {"a": 1})


def test_a_memory_that_attempts_would_share_is_refused_and_one_to_read_is_not() -> None:
    memory = Memory()
    with pytest.raises(UnknownAgent, match="the crew has a memory"):
        ADAPTER.check(crew_of("{a}", memory=memory), "x")
    with pytest.raises(UnknownAgent, match="solver has a memory"):
        ADAPTER.check(crew_of("{a}", worker={"memory": memory}), "x")
    with pytest.raises(UnknownAgent, match="solver has a memory"):
        ADAPTER.check(member(memory=memory), "x")
    memory.read_only = True
    ADAPTER.check(crew_of("{a}", memory=memory), "x")


async def test_errors_of_callbacks_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await ADAPTER.run(crew_of("{a}", before_kickoff_callbacks=[failing]), "x", {})


def failing(inputs: Any) -> Any:
    return 1 / 0


async def test_a_run_that_takes_too_long_for_its_agent_fails_as_crewai_says() -> None:
    done = threading.Event()

    class Slow(Echo):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            done.wait(20)
            return "late"

    worker = Agent(role="solver", goal="g", backstory="b", llm=Slow(model="slow"), max_execution_time=1)
    slow: Any = Crew(agents=[worker], tasks=[Task(description="{a}", expected_output="y", agent=worker)])
    threading.Timer(1.5, done.set).start()  # the executor of CrewAI's own time-out waits for its thread
    with pytest.raises(TimeoutError, match="timed out after 1 seconds"):
        await ADAPTER.run(slow, "x", {})


async def test_an_agent_that_never_comes_to_an_end_is_stopped_by_its_own_limit() -> None:
    told: list[str] = []

    class Busy(Echo):
        def supports_function_calling(self) -> bool:
            return False

        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            told.append("call")
            if len(told) > 2:
                return "Thought: enough\nFinal Answer: so be it"
            return f'Thought: on\nAction: spin\nAction Input: {{"times": {len(told)}}}'

    @tool("spin")
    def spin(times: int) -> str:
        """Spin."""
        return "again"

    worker: Any = Agent(role="solver", goal="g", backstory="b", llm=Busy(model="busy"), max_iter=2, tools=[spin])
    endless = Crew(agents=[worker], tasks=[Task(description="{a}", expected_output="y", agent=worker)])
    assert (await ADAPTER.run(endless, "x", {})).raw == "so be it"
    assert len(told) == 3


async def test_a_crowd_is_limited_by_nobody() -> None:
    crowd = 20
    together = threading.Barrier(crowd)

    class Waiting(Echo):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            together.wait(20)
            return "there"

    given = member()
    given.llm = Waiting(model="waiting")
    results = await asyncio.gather(*(ADAPTER.run(ADAPTER.fresh(given), "x", {}) for _ in range(crowd)))
    assert {result.raw for result in results} == {"there"}


@pytest.fixture
def possible_reasons(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment in which CrewAI tells and looks up what it likes."""
    for name in ("CREWAI_DISABLE_TELEMETRY", "LITELLM_LOCAL_MODEL_COST_MAP", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "true")
    yield


def test_nothing_is_told_while_instrumented_and_the_environment_is_put_back(possible_reasons: None) -> None:
    before, adapter = dict(os.environ), CrewAIAdapter()
    for _ in range(2):
        adapter.instrument()
    assert vars(Telemetry)["_is_telemetry_disabled"].__func__(Telemetry)
    assert os.environ["CREWAI_TRACING_ENABLED"] == "false"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    for _ in range(2):
        adapter.uninstrument()
    assert dict(os.environ) == before


async def test_litellms_answer_cache_is_off_while_instrumented(monkeypatch: pytest.MonkeyPatch) -> None:
    litellm: Any = SimpleNamespace(cache="theirs")
    monkeypatch.setitem(sys.modules, "litellm", litellm)
    adapter = CrewAIAdapter()
    adapter.instrument()
    try:
        assert litellm.cache is None
        litellm.cache = "late"  # an agent's module may set one at any time
        await adapter.run(member(), "hi", {})
        assert litellm.cache is None
    finally:
        adapter.uninstrument()
    assert litellm.cache == "late"
