# The SDK's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrail,
    RunConfig,
    Runner,
    UserError,
    add_trace_processor,
    custom_span,
    function_tool,
    handoff,
    set_trace_processors,
    set_trace_provider,
    set_tracing_disabled,
    trace,
)
from agents.tracing.provider import DefaultTraceProvider
from agents.tracing.spans import NoOpSpan, SpanImpl
from agents.tracing.traces import NoOpTrace, TraceImpl

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import Caller, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import CONTENT
from leyden.openai_agents import LeydenTraceProcessor, OpenAIAgentsInstrumentor

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("untouched")
HOOKED = [(kind, name) for kind in (SpanImpl, NoOpSpan, TraceImpl, NoOpTrace) for name in ("start", "finish")]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> SpanTape:
    monkeypatch.setenv(CONTENT, "true")
    return SpanTape()


@pytest.fixture
def instrumented(tape: SpanTape) -> Iterator[None]:
    OpenAIAgentsInstrumentor().instrument(tracer_provider=tape.provider)
    yield
    OpenAIAgentsInstrumentor().uninstrument()


@function_tool
def look_up(word: str) -> str:
    """Look a word up."""
    emit_reward(0.5)
    return f"{word}!"


@function_tool
def fail(word: str) -> str:
    """Fail."""
    raise ValueError(f"no {word}")


def school(make_model: Make) -> Agent[Any]:
    """A teacher with a tool, who asks a scholar as a tool and hands over to a clerk."""
    scholar = Agent(name="scholar", model=make_model("I know."))
    clerk = Agent(name="clerk", model=make_model(("look_up", {"word": "tea"}), "Noted."), tools=[look_up])
    asked = scholar.as_tool(tool_name="ask_scholar", tool_description="Ask.")
    turns = make_model(("ask_scholar", {"input": "why?"}), ("transfer_to_clerk", {}))
    return Agent(name="teacher", model=turns, tools=[asked], handoffs=[handoff(clerk)])


SCHOOL = [
    "invoke_workflow Agent workflow",
    "  invoke_agent teacher",
    "    chat scripted",
    "    execute_tool ask_scholar",
    "      invoke_agent scholar",
    "        chat scripted",
    "    chat scripted",
    "    handoff clerk",
    "  invoke_agent clerk",
    "    chat scripted",
    "    execute_tool look_up",
    "    chat scripted",
]


async def test_agents_tools_and_handoffs_form_one_tree(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    await Runner.run(school(make_model), "hi")
    assert tape.tree() == SCHOOL
    speakers = [(span.attributes or {})[semconv.AGENT_NAME] for span in tape.spans("chat scripted")]
    assert speakers == ["teacher", "scholar", "teacher", "clerk", "clerk"]
    assert tape.attribute("invoke_workflow Agent workflow", semconv.WORKFLOW_NAME) == "Agent workflow"
    assert tape.attribute("handoff clerk", semconv.HANDOFF_FROM) == "teacher"
    assert tape.attribute("handoff clerk", semconv.HANDOFF_TO) == "clerk"
    assert tape.attribute("execute_tool look_up", semconv.TOOL_ARGUMENTS) == '{"word": "tea"}'
    assert tape.attribute("execute_tool look_up", semconv.TOOL_RESULT) == "tea!"
    [first, *_] = tape.spans("chat scripted")
    expected = {semconv.REQUEST_MODEL: "scripted", semconv.INPUT_TOKENS: 3, semconv.OUTPUT_TOKENS: 2}
    assert expected.items() <= dict(first.attributes or {}).items()
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}
    assert current_caller() is None


async def test_a_streamed_run_is_the_same_tree(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    result = Runner.run_streamed(school(make_model), "hi")
    async for _ in result.stream_events():
        continue
    assert result.final_output == "Noted."
    assert tape.tree() == SCHOOL
    assert current_caller() is None


async def run_disabled(agent: Agent[Any], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "run config":
        await Runner.run(agent, "hi", run_config=RunConfig(tracing_disabled=True))
        return
    if how == "environment":
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
        set_trace_provider(DefaultTraceProvider())
    else:
        set_tracing_disabled(True)
    await Runner.run(agent, "hi")


@pytest.mark.parametrize("how", ["run config", "environment", "function"])
async def test_without_own_tracing_the_tree_is_the_same_and_nobody_is_told(
    how: str, tape: SpanTape, instrumented: None, make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SpanTape()
    add_trace_processor(LeydenTraceProcessor(other.provider))
    await run_disabled(school(make_model), how, monkeypatch)
    assert tape.tree() == SCHOOL
    assert [(span.attributes or {})[semconv.AGENT_NAME] for span in tape.spans("chat scripted")][1] == "scholar"
    assert tape.attribute("execute_tool look_up", semconv.TOOL_RESULT) == "tea!"
    assert not other.spans()


async def test_an_explicit_processor_needs_no_instrumentor(tape: SpanTape, make_model: Make) -> None:
    add_trace_processor(LeydenTraceProcessor(tape.provider))
    await Runner.run(school(make_model), "hi")
    assert tape.tree() == SCHOOL


async def test_every_form_at_once_records_every_run_once(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    for _ in range(2):
        add_trace_processor(LeydenTraceProcessor(tape.provider))
    await Runner.run(school(make_model), "hi")
    assert tape.tree() == SCHOOL


async def test_who_replaces_all_processors_does_not_push_us_out(
    tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    set_trace_processors([])
    await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
    assert tape.tree() == ["invoke_workflow Agent workflow", "  invoke_agent solo", "    chat scripted"]


async def test_uninstrument_leaves_the_sdk_as_it_was(tape: SpanTape, make_model: Make) -> None:
    before = [vars(kind)[name] for kind, name in HOOKED]
    for _ in range(2):
        OpenAIAgentsInstrumentor().instrument(tracer_provider=tape.provider)
        assert all(vars(kind)[name] is not old for (kind, name), old in zip(HOOKED, before, strict=True))
        OpenAIAgentsInstrumentor().uninstrument()
        assert [vars(kind)[name] for kind, name in HOOKED] == before
    await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
    assert not tape.spans()


async def test_what_others_have_patched_over_us_stays_and_we_are_silent(
    tape: SpanTape, make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    first: Any = vars(SpanImpl)["start"]
    OpenAIAgentsInstrumentor().instrument(tracer_provider=tape.provider)
    ours: Any = vars(SpanImpl)["start"]

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self.span_data.type)
        return ours(self, *args, **kwargs)

    monkeypatch.setattr(SpanImpl, "start", theirs)
    OpenAIAgentsInstrumentor().uninstrument()
    await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
    assert "agent" in calls
    assert not tape.spans()
    monkeypatch.undo()
    SpanImpl.start = first


async def test_runs_under_one_trace_are_one_workflow(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    with trace("Day"), custom_span("morning"):
        for _ in range(2):
            await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
    run = ["    invoke_agent solo", "      chat scripted"]
    assert tape.tree() == ["invoke_workflow Day", "  morning", *run, *run]


async def test_a_failing_tool_is_a_failed_span_though_the_run_goes_on(
    tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    agent = Agent(name="solo", model=make_model(("fail", {"word": "tea"}), "done"), tools=[fail])
    assert (await Runner.run(agent, "hi")).final_output == "done"
    assert tape.attribute("execute_tool fail", semconv.ERROR_TYPE) == "ValueError"
    assert "no tea" in str(tape.spans("execute_tool fail")[0].status.description)
    assert tape.attribute("invoke_agent solo", semconv.ERROR_TYPE) is None


@pytest.mark.parametrize("traced", [True, False])
async def test_errors_of_a_run_are_those_its_caller_gets(
    traced: bool, tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    set_tracing_disabled(not traced)
    raising = function_tool(lambda word: 1 / 0, name_override="divide", failure_error_function=None)
    endless = make_model(("look_up", {"word": "tea"}))
    agents: list[tuple[type[Exception], Agent[Any]]] = [
        (UserError, Agent(name="divider", model=make_model(("divide", {"word": "x"})), tools=[raising])),
        (RuntimeError, Agent(name="broken", model=make_model(RuntimeError("down")))),
        (MaxTurnsExceeded, Agent(name="endless", model=endless, tools=[look_up])),
    ]
    for kind, agent in agents:
        with pytest.raises(kind):
            await Runner.run(agent, "hi", max_turns=2)
        assert tape.attribute(f"invoke_agent {agent.name}", semconv.ERROR_TYPE) == kind.__name__
    workflows = [(span.attributes or {})[semconv.ERROR_TYPE] for span in tape.spans("invoke_workflow Agent workflow")]
    assert workflows == [kind.__name__ for kind, _ in agents]
    assert tape.attribute("execute_tool divide", semconv.ERROR_TYPE) == "ZeroDivisionError"


async def test_guardrails_are_recorded_and_a_tripwire_fails_the_agent(
    tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    judge = Agent(name="judge", model=make_model("bad"))

    async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        verdict = await Runner.run(judge, given)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=verdict.final_output == "bad")

    def accept(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    fine = Agent(name="fine", model=make_model("hi"), output_guardrails=[OutputGuardrail(accept)])
    await Runner.run(fine, "hi")
    assert tape.attribute("guardrail accept", semconv.GUARDRAIL_TRIGGERED) is False
    guard = InputGuardrail(check, run_in_parallel=False)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(Agent(name="guarded", model=make_model("hi"), input_guardrails=[guard]), "hi")
    assert tape.attribute("guardrail check", semconv.GUARDRAIL_TRIGGERED) is True
    assert tape.attribute("invoke_agent guarded", semconv.ERROR_TYPE) == "InputGuardrailTripwireTriggered"
    [guardrail], [judged] = tape.spans("guardrail check"), tape.spans("invoke_agent judge")
    assert judged.parent is not None
    assert guardrail.context is not None
    assert judged.parent.span_id == guardrail.context.span_id


async def test_a_run_inside_an_error_handler_has_not_failed(
    tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    try:
        raise ValueError("something else")
    except ValueError:
        await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}


async def test_a_cancelled_run_ends_as_cancelled(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    begun = asyncio.Event()

    @function_tool
    async def wait(word: str) -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return word

    agent = Agent(name="slow", model=make_model(("wait", {"word": "x"})), tools=[wait])
    task = asyncio.create_task(Runner.run(agent, "hi"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tape.attribute("invoke_agent slow", semconv.ERROR_TYPE) == "CancelledError"
    assert current_caller() is None


async def test_a_foreign_provider_is_told_of_structure_only(
    tape: SpanTape, instrumented: None, make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONTENT)
    await Runner.run(school(make_model), "hi")
    failing = Agent(name="solo", model=make_model(("fail", {"word": "tea"}), "done"), tools=[fail])
    await Runner.run(failing, "hi")
    assert tape.tree()[: len(SCHOOL)] == SCHOOL
    assert not any(name in semconv.CONTENT_ATTRIBUTES for span in tape.spans() for name in span.attributes or {})
    assert tape.attribute("execute_tool fail", semconv.ERROR_TYPE) == "ValueError"
    assert tape.spans("execute_tool fail")[0].status.description is None


async def test_a_root_hangs_from_whoever_speaks(tape: SpanTape, instrumented: None, make_model: Make) -> None:
    """An agent inside another framework's tool."""
    outer = Caller(agent="crew", trace_id="ab" * 16, span_id="12" * 8)
    set_caller(outer)
    try:
        await Runner.run(Agent(name="solo", model=make_model("hi")), "hi")
        [root] = tape.spans("invoke_workflow Agent workflow")
        assert root.parent is not None
        assert f"{root.parent.span_id:x}" == "12" * 8
        assert current_caller() is outer
    finally:
        set_caller(None)


async def test_what_is_emitted_in_a_tool_hangs_from_the_tool(
    tape: SpanTape, instrumented: None, make_model: Make
) -> None:
    attempt = factories.attempt()
    with open_attempt(attempt):
        await Runner.run(school(make_model), "hi")
    [reward], [tool] = attempt.notes, tape.spans("execute_tool look_up")
    assert tool.context is not None
    assert reward.parent_id == f"{tool.context.span_id:016x}"


async def test_our_own_failure_is_logged_and_the_agent_notices_nothing(
    tape: SpanTape,
    instrumented: None,
    make_model: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leyden.core.tracing.spans.run_tree.start_span", broken)
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        result = await Runner.run(Agent(name="solo", model=make_model("fine")), "hi")
    assert result.final_output == "fine"
    assert "could not be recorded" in caplog.text
