"""Every form of the adapter, alone and together, and that each leaves CrewAI as it was."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

import logging
import subprocess
import sys
from typing import Any

import pytest
from crewai.events.event_bus import CrewAIEventsBus
from crewai.tools import tool
from crews import CHAT, CREW_OF_TWO, Tape, crew, crew_of_two, member

from leyden.core.tracing.context import current_caller
from leyden.crewai import CrewAIInstrumentor, LeydenEventListener


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


def test_our_own_failure_is_logged_and_the_agent_notices_nothing(
    tape: Tape, instrumented: None, llm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leyden.core.tracing.spans.run_tree.start_span", broken)
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        assert crew([member("solver", llm())]).kickoff().raw == "fine"
    assert "could not be recorded" in caplog.text


def test_instrumenting_does_not_load_crewai() -> None:
    script = """
import sys
from leyden.crewai import CrewAIInstrumentor
CrewAIInstrumentor().instrument()
CrewAIInstrumentor().uninstrument()
assert "crewai" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
