"""The trees of crews and flows, over the real gateway and a scripted engine, at a foreign provider that keeps them."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Flow, Process, Task
from crewai.events import crewai_event_bus
from crewai.events.event_bus import CrewAIEventsBus
from crewai.events.types.llm_events import LLMCallStartedEvent, LLMCallType
from crewai.events.types.task_events import TaskCompletedEvent
from crewai.events.types.tool_usage_events import ToolUsageStartedEvent
from crewai.flow.flow import listen, start
from crewai.tools import tool
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import EngineError
from leyden.core.testing.gateway_bench import GatewayBench, Turn
from leyden.core.tracing import carry, production, routing
from leyden.core.tracing.context import Caller, OpenAttempt, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.export import CONTENT
from leyden.crewai import CrewAIInstrumentor, LeydenEventListener

CAPTURE_TOKEN = "captures-only"
CHAT = "chat gpt-4.1-mini"


class Tape:
    """A tracer provider that keeps its spans."""

    def __init__(self) -> None:
        self.provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str | None = None) -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def tree(self) -> list[str]:
        """Each span in the order of its start, indented by depth."""
        spans = sorted(self.spans(), key=lambda span: span.start_time or 0)
        depth: dict[int, int] = {}
        lines: list[str] = []
        for span in spans:
            assert span.context is not None
            depth[span.context.span_id] = depth[span.parent.span_id] + 1 if span.parent else 0
            lines.append("  " * depth[span.context.span_id] + span.name)
        return lines

    def attribute(self, span_name: str, attribute: str) -> list[Any]:
        return [(span.attributes or {}).get(attribute) for span in self.spans(span_name)]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    monkeypatch.setenv(CONTENT, "true")
    return Tape()


@pytest.fixture
def instrumented(tape: Tape) -> Iterator[None]:
    CrewAIInstrumentor().instrument(tracer_provider=tape.provider)
    yield
    CrewAIInstrumentor().uninstrument()


def call_of(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Model:
    """Uses the tool it has, once; a chief gives work to its scholar. `broken` fails, `flaky` fails once."""

    def __init__(self) -> None:
        self.failures = 1

    def __call__(self, conversation: list[Turn]) -> str | Exception:
        asked = " ".join(turn.text for turn in conversation if turn.role == "user")
        tools = conversation[0].text if conversation[0].text.startswith("[{") else ""
        if "broken" in asked or ("flaky" in asked and self.failures):
            self.failures -= 1
            return EngineError("the engine is broken")
        if conversation[-1].role == "tool":
            return "done"
        if '"delegate_work_to_coworker"' in tools:
            return call_of("delegate_work_to_coworker", task="look it up", context="tea", coworker="scholar")
        return call_of("look_up", word="tea") if '"look_up"' in tools else "fine"


@pytest.fixture
def bench() -> Iterator[GatewayBench]:
    bench = GatewayBench(Model(), capture_token=CAPTURE_TOKEN)
    bench.start()
    yield bench
    bench.stop()


@pytest.fixture
def llm(bench: GatewayBench) -> Callable[..., Any]:
    """Makes models whose provider is the gateway."""
    base_url = f"{bench.url}/a/{asyncio.run(bench.attempt('x')).token}/v1"

    def make() -> Any:
        return LLM(model="openai/gpt-4.1-mini", base_url=base_url, api_key="sk-x", max_retries=0)

    return make


@tool("look_up")
def look_up(word: str) -> str:
    """Look a word up."""
    emit_reward(0.5)
    return f"{word}!"


def member(role: str, llm: Any, **more: Any) -> Any:
    return Agent(role=role, goal="answer", backstory="You work.", llm=llm, **more)


def crew(members: Any, wish: str = "speak", **more: Any) -> Any:
    tasks: list[Any] = [Task(description=wish, expected_output="words", agent=one) for one in members]
    return Crew(agents=members, tasks=tasks, **more)


def crew_of_two(llm: Any) -> Any:
    scholar = member("scholar", llm(), tools=[look_up])
    critic = member(" critic\n", llm())
    return Crew(
        agents=[scholar, critic],
        name="school",
        tasks=[
            Task(name="study", description="read", expected_output="words", agent=scholar),
            Task(description="judge", expected_output="words", agent=critic),
        ],
    )


CREW_OF_TWO = [
    "invoke_workflow school",
    "  node study",
    "    invoke_agent scholar",
    f"      {CHAT}",
    "      execute_tool look_up",
    f"      {CHAT}",
    "  invoke_agent critic",
    f"    {CHAT}",
]


def test_tasks_agents_calls_and_tools_form_one_tree(tape: Tape, instrumented: None, llm: Any) -> None:
    crew_of_two(llm).kickoff()
    assert tape.tree() == CREW_OF_TWO
    assert tape.attribute(CHAT, semconv.AGENT_NAME) == ["scholar", "scholar", "critic"]
    assert tape.attribute(CHAT, semconv.NODE) == ["study", "study", None]
    assert tape.attribute(CHAT, semconv.REQUEST_MODEL) == ["gpt-4.1-mini"] * 3
    assert tape.attribute(CHAT, semconv.FINISH_REASONS) == [("tool_calls",), ("stop",), ("stop",)]
    assert all(tape.attribute(CHAT, semconv.OUTPUT_TOKENS)) and all(tape.attribute(CHAT, semconv.RESPONSE_ID))
    assert tape.attribute("execute_tool look_up", semconv.TOOL_ARGUMENTS) == ['{"word": "tea"}']
    assert tape.attribute("execute_tool look_up", semconv.TOOL_RESULT) == ["tea!"]
    assert all(tape.attribute("invoke_agent scholar", semconv.AGENT_ID))
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
    assert tape.attribute(CHAT, semconv.REQUEST_STREAM)[3:] == [True] * 3


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
    assert tape.attribute("handoff scholar", semconv.HANDOFF_FROM) == ["chief"]
    assert tape.attribute(CHAT, semconv.AGENT_NAME) == ["chief", "scholar", "scholar", "chief"]


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
    assert tape.attribute(CHAT, semconv.NODE) == ["wonder", "study", "judge"]


def test_a_lone_agent_speaks_as_itself(tape: Tape, instrumented: None, llm: Any) -> None:
    member("scholar", llm(), tools=[look_up]).kickoff("read")
    assert tape.tree() == ["invoke_agent scholar", f"  {CHAT}", "  execute_tool look_up", f"  {CHAT}"]


def test_a_failure_that_is_told_twice_ends_only_its_own_call(tape: Tape, instrumented: None, llm: Any) -> None:
    with pytest.raises(Exception) as raised:
        crew([member("solver", llm(), max_retry_limit=1)], "broken").kickoff()
    tries = ["  invoke_agent solver", f"    {CHAT}"]
    assert tape.tree() == ["invoke_workflow crew", *tries, *tries]
    assert {span.status.status_code.name for span in tape.spans()} == {"ERROR"}
    assert tape.attribute("invoke_workflow crew", semconv.ERROR_TYPE) == [type(raised.value).__qualname__]


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


def test_every_form_at_once_records_every_run_once(tape: Tape, instrumented: None, llm: Any) -> None:
    other = Tape()
    listeners = [LeydenEventListener(other.provider), LeydenEventListener(tape.provider)]
    crew_of_two(llm).kickoff()
    for listener in listeners:
        listener.close()
    assert tape.tree() == CREW_OF_TWO
    assert not other.spans()


def test_a_listener_needs_no_instrumentor_and_leaves_the_bus_as_it_was(tape: Tape, llm: Any) -> None:
    emit = CrewAIEventsBus.emit
    listener = LeydenEventListener(tape.provider)
    crew_of_two(llm).kickoff()
    listener.close()
    crew_of_two(llm).kickoff()
    assert tape.tree() == CREW_OF_TWO
    assert CrewAIEventsBus.emit is emit


def test_uninstrument_leaves_crewai_as_it_was_and_ends_what_runs(tape: Tape, llm: Any) -> None:
    emit = CrewAIEventsBus.emit
    for _ in range(2):
        CrewAIInstrumentor().instrument(tracer_provider=tape.provider)
        assert CrewAIEventsBus.emit is not emit
        CrewAIInstrumentor().uninstrument()
        assert CrewAIEventsBus.emit is emit
    CrewAIInstrumentor().instrument(tracer_provider=tape.provider)

    @tool("look_up")
    def stop(word: str) -> str:
        """Look a word up."""
        CrewAIInstrumentor().uninstrument()
        return word

    crew([member("solver", llm(), tools=[stop])]).kickoff()
    assert tape.tree() == ["invoke_workflow crew", "  invoke_agent solver", f"    {CHAT}", "    execute_tool look_up"]
    assert current_caller() is None


def test_a_wrapper_around_ours_outlives_it(tape: Tape, monkeypatch: pytest.MonkeyPatch, llm: Any) -> None:
    CrewAIInstrumentor().instrument(tracer_provider=tape.provider)
    ours: Any = CrewAIEventsBus.emit
    told: list[str] = []

    def theirs(bus: Any, source: Any, event: Any) -> Any:
        told.append(event.type)
        return ours(bus, source, event)

    monkeypatch.setattr(CrewAIEventsBus, "emit", theirs)
    CrewAIInstrumentor().uninstrument()
    crew([member("solver", llm())]).kickoff()
    assert "llm_call_started" in told
    assert not tape.spans()
    CrewAIInstrumentor().instrument(tracer_provider=tape.provider)
    crew([member("solver", llm())]).kickoff()
    assert tape.tree() == ["invoke_workflow crew", "  invoke_agent solver", f"    {CHAT}"]
    monkeypatch.undo()
    CrewAIInstrumentor().uninstrument()


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
    attempt = OpenAttempt(rollout_id="r", attempt_id="a", token="t", gateway_url="http://x", trace_id="ab" * 16)

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


def test_our_own_failure_is_logged_and_the_agent_notices_nothing(
    tape: Tape, instrumented: None, llm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leyden.core.tracing.run_tree.tracer", broken)
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        assert crew([member("solver", llm())]).kickoff().raw == "fine"
    assert "could not be recorded" in caplog.text


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
    monkeypatch.setattr(production, "BEGIN_SECONDS", 10.0)  # a busy machine is no failure
    monkeypatch.setenv("LEYDEN_CAPTURE", "production")
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", bench.url)
    monkeypatch.setenv("LEYDEN_CAPTURE_TOKEN", CAPTURE_TOKEN)
    yield
    routing.uninstall()
    carry.uninstall()


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


def test_instrumenting_does_not_load_crewai() -> None:
    script = """
import sys
from leyden.crewai import CrewAIInstrumentor
CrewAIInstrumentor().instrument()
CrewAIInstrumentor().uninstrument()
assert "crewai" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
