"""The trees of crews and flows, over the real gateway and a scripted engine, at a foreign provider that keeps them."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from crewai import LLM, Crew, Flow, Process, Task
from crewai.events import crewai_event_bus
from crewai.events.types.llm_events import LLMCallStartedEvent, LLMCallType
from crewai.events.types.task_events import TaskCompletedEvent
from crewai.events.types.tool_usage_events import ToolUsageStartedEvent
from crewai.flow.flow import listen, start
from crewai.knowledge.knowledge import Knowledge
from crewai.tools import tool
from crews import (
    CHAT,
    CREW_OF_TWO,
    Tape,
    crew,
    crew_of_two,
    look_up,
    member,
)

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.testing import factories
from leyden.core.testing.capturing import captured_by
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.context import Caller, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import CONTENT
from leyden.crewai import CrewAIInstrumentor


def test_tasks_agents_calls_and_tools_form_one_tree(tape: Tape, instrumented: None, llm: Any) -> None:
    crew_of_two(llm).kickoff()
    assert tape.tree() == CREW_OF_TWO
    assert tape.attributes(CHAT, semconv.AGENT_NAME) == ["scholar", "scholar", "critic"]
    assert tape.attributes(CHAT, semconv.NODE) == ["study", "study", None]
    assert tape.attributes(CHAT, semconv.REQUEST_MODEL) == ["gpt-4.1-mini"] * 3
    assert tape.attributes(CHAT, semconv.FINISH_REASONS) == [("tool_calls",), ("stop",), ("stop",)]
    assert all(tape.attributes(CHAT, semconv.OUTPUT_TOKENS)) and all(tape.attributes(CHAT, semconv.RESPONSE_ID))
    assert tape.attributes("execute_tool look_up", semconv.TOOL_ARGUMENTS) == ['{"word": "tea"}']
    assert tape.attributes("execute_tool look_up", semconv.TOOL_RESULT) == ["tea!"]
    assert all(tape.attributes("invoke_agent scholar", semconv.AGENT_ID))
    assert current_caller() is None


@pytest.mark.parametrize("method", ["kickoff_async", "akickoff"])
async def test_async_and_streamed_runs_give_the_same_tree(
    tape: Tape, instrumented: None, llm: Any, method: str
) -> None:
    await getattr(crew_of_two(llm), method)()
    assert tape.tree() == CREW_OF_TWO
    streaming = crew_of_two(llm)
    streaming.stream = True
    output = await getattr(streaming, method)()
    assert [chunk async for chunk in output]
    assert tape.tree() == [*CREW_OF_TWO, *CREW_OF_TWO]
    assert tape.attributes(CHAT, semconv.REQUEST_STREAM)[3:] == [True] * 3


class Shelf(Knowledge):
    """Needs no embeddings."""

    def query(self, query: list[str], *_: Any, **__: Any) -> Any:
        return [{"content": "Tea is hot."}]

    async def aquery(self, query: list[str], *_: Any, **__: Any) -> Any:
        return self.query(query)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("method", ["kickoff", "akickoff"])
async def test_what_asks_the_knowledge_for_a_task_is_the_tasks_agent(
    tape: Tape, instrumented: None, llm: Any, named: bool, method: str
) -> None:
    """CrewAI asks a model for the question before it says that the agent begins."""
    scholar = member("scholar", llm())
    scholar.knowledge = Shelf.model_construct(collection_name="shelf", sources=[])
    task = Task(description="study tea", expected_output="a line", agent=scholar, name="study" if named else None)
    kickoff = getattr(Crew(agents=[scholar], tasks=[task]), method)
    await (kickoff() if method == "akickoff" else asyncio.to_thread(kickoff))
    assert tape.attributes(CHAT, semconv.AGENT_NAME) == ["scholar", "scholar"]
    assert tape.attributes(CHAT, semconv.NODE) == ["study" if named else None] * 2


DELEGATED = [
    f"{CHAT}",
    "execute_tool delegate_work_to_coworker",
    "  handoff scholar",
    "  invoke_agent scholar",
    f"    {CHAT}",
    "    execute_tool look_up",
    f"    {CHAT}",
    f"{CHAT}",
]


@pytest.mark.parametrize("process", [Process.sequential, Process.hierarchical])
def test_delegated_work_hangs_from_who_gave_it(tape: Tape, instrumented: None, llm: Any, process: Process) -> None:
    scholar = member("scholar", llm(), tools=[look_up])
    chief = member("chief", llm(), allow_delegation=True)
    if process is Process.sequential:
        work = Task(description="ask", expected_output="words", agent=chief)
        Crew(agents=[chief, scholar], tasks=[work]).kickoff()
    else:
        work = Task(description="ask", expected_output="words")
        Crew(agents=[scholar], tasks=[work], process=process, manager_agent=chief).kickoff()
    assert tape.tree() == ["invoke_workflow crew", "  invoke_agent chief", *[f"    {line}" for line in DELEGATED]]
    assert tape.attributes("handoff scholar", semconv.HANDOFF_FROM) == ["chief"]
    assert tape.attributes(CHAT, semconv.AGENT_NAME) == ["chief", "scholar", "scholar", "chief"]


def school(llm: Any) -> Any:
    """A flow: its own model call, a crew and a lone agent, one after the other."""

    class School(Flow[Any]):
        @start()
        def wonder(self) -> Any:
            return llm().call("hm")

        @listen(wonder)
        def study(self, _: Any) -> Any:
            return crew([member("scholar", llm())]).kickoff().raw

        @listen(study)
        async def judge(self, _: Any) -> Any:
            return (await member("critic", llm()).kickoff_async("judge")).raw

    return School()


def test_a_flow_holds_its_methods_and_what_they_run(tape: Tape, instrumented: None, llm: Any) -> None:
    assert school(llm).kickoff() == "fine"
    assert tape.tree() == [
        "invoke_workflow School",
        "  node wonder",
        f"    {CHAT}",
        "  node study",
        "    invoke_workflow crew",
        "      invoke_agent scholar",
        f"        {CHAT}",
        "  node judge",
        "    invoke_agent critic",
        f"      {CHAT}",
    ]
    assert tape.attributes(CHAT, semconv.NODE) == ["wonder", "study", "judge"]


def test_a_lone_agent_speaks_as_itself(tape: Tape, instrumented: None, llm: Any) -> None:
    member("scholar", llm(), tools=[look_up]).kickoff("read")
    assert tape.tree() == ["invoke_agent scholar", f"  {CHAT}", "  execute_tool look_up", f"  {CHAT}"]


def test_a_failure_that_is_told_twice_ends_only_its_own_call(tape: Tape, instrumented: None, llm: Any) -> None:
    with pytest.raises(Exception) as raised:
        crew([member("solver", llm(), max_retry_limit=1)], "broken").kickoff()
    tries = ["  invoke_agent solver", f"    {CHAT}"]
    assert tape.tree() == ["invoke_workflow crew", *tries, *tries]
    assert {span.status.status_code.name for span in tape.spans()} == {"ERROR"}
    assert tape.attributes("invoke_workflow crew", semconv.ERROR_TYPE) == [type(raised.value).__qualname__]


def test_what_crewai_tries_again_is_another_run_of_the_agent(tape: Tape, instrumented: None, llm: Any) -> None:
    crew([member("solver", llm(), max_retry_limit=1)], "flaky").kickoff()
    agents = tape.spans("invoke_agent solver")
    assert [span.status.status_code.name for span in agents] == ["ERROR", "UNSET"]
    assert tape.tree()[0::2] == ["invoke_workflow crew", f"    {CHAT}", f"    {CHAT}"]


def test_a_tool_that_raises_has_failed(tape: Tape, instrumented: None, llm: Any) -> None:
    @tool("look_up")
    def refuse(word: str) -> str:
        """Look a word up."""
        raise ValueError(f"no {word}")

    crew([member("solver", llm(), tools=[refuse])]).kickoff()
    [span] = tape.spans("execute_tool look_up")
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "no tea")
    assert (span.attributes or {})[semconv.ERROR_TYPE] == "ValueError"


def test_a_call_whose_end_is_never_told_ends_with_what_follows(
    tape: Tape, instrumented: None, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over LiteLLM, where a call that ends in a tool call is not told to have ended."""
    model = llm()
    model.is_litellm = True
    tell = model._emit_call_completed_event

    def tell_less(response: Any, call_type: LLMCallType, *args: Any, **kwargs: Any) -> None:
        if call_type is not LLMCallType.TOOL_CALL:
            tell(response, call_type, *args, **kwargs)

    monkeypatch.setattr(type(model), "_emit_call_completed_event", staticmethod(tell_less))
    crew([member("solver", model, tools=[look_up])]).kickoff()
    tools, calls = tape.spans("execute_tool look_up"), tape.spans(CHAT)
    assert tape.tree() == [
        "invoke_workflow crew",
        "  invoke_agent solver",
        f"    {CHAT}",
        "    execute_tool look_up",
        f"    {CHAT}",
    ]
    assert (calls[0].end_time or 0) <= (tools[0].end_time or 0)
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}


def test_a_tool_inside_a_call_hangs_from_the_call(tape: Tape, instrumented: None, llm: Any) -> None:
    """As where LiteLLM's client runs the tool itself."""
    model = llm()
    crewai_event_bus.emit(model, LLMCallStartedEvent(model="m", call_id="1"))
    crewai_event_bus.emit(model, ToolUsageStartedEvent(tool_name="inner", tool_args="{}"))
    crewai_event_bus.emit(object(), ToolUsageStartedEvent(tool_name="later", tool_args="{}"))
    CrewAIInstrumentor().uninstrument()
    assert tape.tree() == ["chat m", "  execute_tool inner", "    execute_tool later"]


def test_a_root_hangs_from_whoever_speaks(tape: Tape, instrumented: None, llm: Any) -> None:
    """A crew inside another framework's tool, or inside an `operation`."""
    outer = Caller(agent="graph", trace_id="ab" * 16, span_id="12" * 8)
    set_caller(outer)
    try:
        crew([member("solver", llm())]).kickoff()
        [span] = tape.spans("invoke_workflow crew")
        assert span.parent is not None and span.context is not None
        assert (f"{span.parent.span_id:x}", f"{span.context.trace_id:x}") == ("12" * 8, "ab" * 16)
        assert current_caller() == outer
    finally:
        set_caller(None)


def rewarded(output: Any) -> None:
    emit_reward(0.25)


def test_what_is_emitted_in_tools_callbacks_and_handlers_hangs_from_where_it_is(
    tape: Tape, instrumented: None, llm: Any
) -> None:
    attempt = factories.attempt()

    def handled(source: Any, event: Any) -> None:
        emit_reward(0.125)

    task = Task(
        description="read",
        expected_output="words",
        agent=member("scholar", llm(), tools=[look_up]),
        callback=rewarded,
        name="study",
    )
    with crewai_event_bus.scoped_handlers(), open_attempt(attempt):
        crewai_event_bus.on(TaskCompletedEvent)(handled)
        Crew(agents=[task.agent], tasks=[task]).kickoff()  # pyright: ignore[reportArgumentType]  # Optional in its type
        crewai_event_bus.flush()
    names = {f"{span.context.span_id:016x}": span.name for span in tape.spans() if span.context}
    where = {note.attributes[semconv.REWARD_VALUE]: names[str(note.parent_id)] for note in attempt.notes}
    assert where.pop(0.125) in ("node study", "invoke_workflow crew")  # a handler runs when it comes to it
    assert where == {0.5: "execute_tool look_up", 0.25: "node study"}


def test_a_foreign_backend_is_told_the_structure_and_nothing_of_what_was_said(
    tape: Tape, instrumented: None, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONTENT)
    crew_of_two(llm).kickoff()
    with pytest.raises(Exception, match="broken"):
        crew([member("solver", llm(), max_retry_limit=0)], "broken").kickoff()
    assert tape.tree()[: len(CREW_OF_TWO)] == CREW_OF_TWO
    told = " ".join(span.to_json() for span in tape.spans())
    assert "execute_tool look_up" in told
    assert not any(word in told for word in ("tea", "judge", "fine", "engine"))


@pytest.fixture
def capturing(bench: GatewayBench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with captured_by(bench.url, monkeypatch):
        yield


@pytest.mark.parametrize("kind", ["crew", "flow", "agent"])
def test_in_production_each_root_run_is_a_rollout(
    bench: GatewayBench, tape: Tape, instrumented: None, capturing: None, kind: str
) -> None:
    def llm() -> Any:
        return LLM(model="openai/gpt-4.1-mini", base_url="http://127.0.0.1:9/v1", api_key="sk-x", max_retries=0)

    if kind == "crew":
        crew_of_two(llm).kickoff()
    elif kind == "flow":
        school(llm).kickoff()
    else:
        member("scholar", llm(), tools=[look_up]).kickoff("read")
    name, calls = {"crew": ("school", 3), "flow": ("School", 3), "agent": ("scholar", 2)}[kind]
    [rollout] = asyncio.run(bench.store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts(bench)]))
    assert isinstance(rollout, AttemptedRollout)
    assert (rollout.status, rollout.metadata["agent"]) == ("succeeded", name)
    spans = asyncio.run(bench.store.query_spans(rollout.rollout_id)).items
    assert sum(semconv.CALL_ID in span.attributes for span in spans) == calls


def rollouts(bench: GatewayBench) -> list[Any]:
    return asyncio.run(bench.store.query_rollouts()).items


async def test_in_production_a_crew_that_is_cancelled_is_a_failed_rollout(
    bench: GatewayBench, tape: Tape, instrumented: None, capturing: None
) -> None:
    llm = LLM(model="openai/gpt-4.1-mini", base_url="http://127.0.0.1:9/v1", api_key="sk-x", max_retries=0)
    work = asyncio.create_task(crew([member("solver", llm)], "be slow").akickoff())
    async with asyncio.timeout(30):
        while not bench.gateway.engine.requests:
            await asyncio.sleep(0.02)
    work.cancel()
    await asyncio.wait({work})
    [waiting] = (await bench.store.query_rollouts()).items
    async with asyncio.timeout(30):
        [rollout] = await bench.store.wait_for_rollouts(rollout_ids=[waiting.rollout_id])
    assert work.cancelled()
    assert rollout.status == "failed"
    assert tape.tree()[:2] == ["invoke_workflow crew", "  invoke_agent solver"]
