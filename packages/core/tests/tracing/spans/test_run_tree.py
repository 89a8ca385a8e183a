import logging
from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.testing import factories
from leyden.core.tracing.context import OpenAttempt, current_caller, open_attempt
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans import export, run_tree
from leyden.core.tracing.spans.export import Recorder, start_recording
from leyden.core.tracing.spans.run_tree import Run, RunTree

STORED: list[Span] = []


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    async def keep(spans: list[Span]) -> None:
        STORED.extend(spans)

    STORED.clear()
    recorder = await start_recording(keep)
    yield recorder
    await recorder.stop()


def attempt(name: str = "a") -> OpenAttempt:
    return factories.attempt(attempt_id=name)


def begun(run: Run | None) -> Run:
    assert run is not None
    return run


async def test_runs_without_a_span_are_seen_through(recorder: Recorder) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        tree.open_agent(begun(tree.start("root", None, "solver")), "solver")
        begun(tree.start("link", "root", "link"))
        call = begun(tree.start("call", "link", "call", node="n"))
        tree.open(call, "chat m", {"given": 1, "absent": None})
        assert current_caller() == call.caller
        for key in ("call", "link", "root"):
            tree.end(key)
        assert current_caller() is None
    await recorder.flush()
    chat, root = STORED
    assert (chat.parent_id, chat.trace_id) == (root.span_id, "ab" * 16)
    assert chat.attributes == {
        "given": 1,
        semconv.FRAMEWORK: "some",
        semconv.AGENT_NAME: "solver",
        semconv.NODE: "n",
    }


async def test_a_run_told_twice_is_recorded_once_and_ends_once(recorder: Recorder) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        tree.open(begun(tree.start("x", None, "x")), "x", {})
        assert tree.start("x", None, "x") is None
        tree.end("x", ValueError("no"))
        tree.end("x")
    await recorder.flush()
    [span] = STORED
    assert (span.status.code, span.attributes[semconv.ERROR_TYPE]) == ("error", "ValueError")


def test_runs_of_closed_attempts_that_never_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tree, "LIVE_LIMIT", 10)
    tree = RunTree("some")
    with open_attempt(attempt()):
        for number in range(20):
            tree.start(number, None, "left")
        assert tree.start(0, None, "left") is None  # alive: its attempt is open
    tree.start("after", None, "after")
    assert tree.start(0, None, "left") is not None


def test_quietly_logs_what_it_catches(caplog: pytest.LogCaptureFixture) -> None:
    @quietly
    def callback(value: int) -> None:
        raise KeyError(value)

    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        callback(3)
    assert "callback could not be recorded" in caplog.text


async def test_a_foreign_backend_is_told_what_happened_and_not_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def record() -> list[ReadableSpan]:
        kept = InMemorySpanExporter()
        provider, tree = TracerProvider(), RunTree("some")
        provider.add_span_processor(SimpleSpanProcessor(kept))
        tree.open_workflow(begun(tree.start("crew", None, "crew")), "crew", provider=provider)
        tree.open_tool(begun(tree.start("tool", "crew", "t")), "look", arguments='{"secret": 1}', provider=provider)
        tree.end("tool", ValueError("the secret is 1"), {semconv.TOOL_RESULT: "secret"})
        tree.end("crew")
        return list(kept.get_finished_spans())

    tool, crew = record()
    assert (crew.name, tool.name) == ("invoke_workflow crew", "execute_tool look")
    assert "secret" not in tool.to_json()
    assert dict(tool.attributes or {})[semconv.ERROR_TYPE] == "ValueError"
    assert tool.status.status_code is StatusCode.ERROR
    monkeypatch.setenv(export.CONTENT, "span_only")
    tool, _ = record()
    assert (tool.attributes or {})[semconv.TOOL_RESULT] == "secret"
    assert tool.status.description == "the secret is 1"


async def test_a_handoff_is_noted_and_changes_no_speaker(recorder: Recorder) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        tree.open_agent(begun(tree.start("root", None, "triage")), "triage")
        speaking = current_caller()
        tree.handoff("root", "triage", "solver")
        assert current_caller() is speaking
        tree.end("root")
    await recorder.flush()
    handoff, root = STORED
    assert (handoff.name, handoff.parent_id) == ("handoff solver", root.span_id)
    assert handoff.attributes[semconv.HANDOFF_FROM] == "triage"
    assert handoff.attributes[semconv.HANDOFF_TO] == "solver"


async def test_a_root_agent_is_captured_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, object]] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self._name = name

        def __enter__(self) -> None:
            told.append(("begin", self._name))

        def __exit__(self, kind: object, *_: object) -> None:
            told.append(("end", kind))

    monkeypatch.setattr(run_tree, "root_agent", Noted)
    tree = RunTree("some")
    tree.open_agent(begun(tree.start("root", None, "planner")), "planner")
    tree.open_agent(begun(tree.start("inner", "root", "solver")), "solver")
    tree.end("inner")
    tree.end("root", ValueError("no"))
    assert told == [("begin", "planner"), ("end", ValueError)]


async def test_nothing_of_ours_hangs_from_a_foreign_span(recorder: Recorder) -> None:
    """A user's own tracing may be on beside ours; its spans are not in our record."""
    tree, foreign = RunTree("some"), TracerProvider().get_tracer("the user's")
    with open_attempt(attempt()), foreign.start_as_current_span("request"):
        tree.open_agent(begun(tree.start("root", None, "solver")), "solver")
        with foreign.start_as_current_span("tool"):
            other = RunTree("other")
            other.open_agent(begun(other.start("root", None, "helper")), "helper")
            inner = current_caller()
        tree.end("root")
    await recorder.flush()
    [root] = STORED
    assert (root.parent_id, root.trace_id) == (None, "ab" * 16)
    assert inner is not None
    assert inner.trace_id == root.trace_id


async def test_of_a_speaker_and_a_current_span_the_newer_one_is_the_parent(recorder: Recorder) -> None:
    crew, graph = RunTree("crew"), RunTree("graph")
    with open_attempt(attempt()), export.tracer().start_as_current_span("request"):
        crew.open_agent(begun(crew.start("crew", None, "crew")), "crew")
        graph.open_agent(begun(graph.start("in the crew", None, "graph")), "graph")
        with export.tracer().start_as_current_span("the user's own"):
            graph.open_agent(begun(graph.start("in a span", None, "deep")), "deep")
            graph.end("in a span")
        graph.end("in the crew")
        crew.end("crew")
    await recorder.flush()
    parents = {span.name: span.parent_id for span in STORED}
    ids = {span.name: span.span_id for span in STORED}
    assert parents["invoke_agent crew"] == ids["request"]
    assert parents["invoke_agent graph"] == ids["invoke_agent crew"]
    assert parents["invoke_agent deep"] == ids["the user's own"]


async def test_what_another_framework_calls_hangs_from_it_not_from_the_outer_run_it_belongs_to(
    recorder: Recorder,
) -> None:
    """A framework knows its own runs only: a graph in a tool of another's agent that a node of a graph runs."""
    outer, inner = RunTree("outer"), RunTree("inner")
    with open_attempt(attempt()):
        outer.open_agent(begun(outer.start("node", None, "node")), "node")
        inner.open_tool(begun(inner.start("tool", None, "tool")), "double")
        outer.open(begun(outer.start("within", "node", "within")), "within", {})
        outer.end("within")
        inner.end("tool")
        outer.open(begun(outer.start("sibling", "node", "sibling")), "sibling", {})
        outer.open(begun(outer.start("beside", "node", "beside")), "beside", {})  # of the same framework: no child
        for key in ("beside", "sibling", "node"):
            outer.end(key)
    await recorder.flush()
    ids = {span.span_id: span.name for span in STORED}
    parents = {span.name: ids.get(span.parent_id or "") for span in STORED}
    node, tool = "invoke_agent node", "execute_tool double"
    assert parents == {"within": tool, tool: node, "sibling": node, "beside": node, node: None}


async def test_an_agent_by_its_shape_that_holds_agents_is_a_workflow(recorder: Recorder) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        graph, named = begun(tree.start("graph", None, "graph")), begun(tree.start("named", "graph", "named"))
        graph.by_shape = True
        tree.open_agent(graph, "graph")
        tree.open_agent(named, "named")
        tree.hold_agents(graph)
        tree.open_agent(begun(tree.start("inner", "named", "inner")), "inner")
        tree.hold_agents(named)
        for key in ("inner", "named", "graph"):
            tree.end(key)
    await recorder.flush()
    assert [span.name for span in STORED] == ["invoke_agent inner", "invoke_agent named", "invoke_workflow graph"]
    workflow = STORED[-1].attributes
    assert (workflow[semconv.OPERATION], workflow[semconv.WORKFLOW_NAME]) == ("invoke_workflow", "graph")


async def recorded_parents(recorder: Recorder) -> dict[str, str | None]:
    """Return the name of each span's parent."""
    await recorder.flush()
    ids = {span.span_id: span.name for span in STORED}
    return {span.name: ids.get(span.parent_id or "") for span in STORED}


async def test_roots_of_a_framework_that_knows_its_bodies_hang_from_one_another_only_there(recorder: Recorder) -> None:
    body: list[str | None] = [None]
    crew, graph = RunTree("crew"), RunTree("graph", lambda: body[-1])
    with open_attempt(attempt()):
        crew.open_agent(begun(crew.start("crew", None, "crew")), "crew")
        speaking = current_caller()
        for name in ("first", "second", "third"):  # as in a batch: all start before one ends
            graph.open_agent(begun(graph.start(name, None, name)), name)
        body.append("link")
        begun(graph.start("link", "second", "link"))
        graph.open_agent(begun(graph.start("inside", None, "inside")), "inside")
        graph.open_agent(begun(graph.start("inside too", None, "inside too")), "inside too")
        for name in ("inside", "inside too", "link", "second", "first", "third"):
            graph.end(name)
        assert current_caller() is speaking
        crew.end("crew")
        assert current_caller() is None
    first = "invoke_agent crew"
    inside = {"invoke_agent inside": "invoke_agent second", "invoke_agent inside too": "invoke_agent second"}
    beside = {f"invoke_agent {name}": first for name in ("first", "second", "third")}
    assert await recorded_parents(recorder) == inside | beside | {first: None}


async def test_of_roots_beside_one_another_the_one_that_goes_on_speaks(recorder: Recorder) -> None:
    tree = RunTree("graph", lambda: None)
    with open_attempt(attempt()):
        first, second = begun(tree.start("first", None, "first")), begun(tree.start("second", None, "second"))
        for run in (first, second):
            tree.open_agent(run, run.name)
        tree.start("link", "first", "link")
        assert current_caller() is first.caller
        tree.open_tool(begun(tree.start("tool", "second", "tool")), "tool")
        speaking = current_caller()
        assert speaking is not None
        assert speaking.outer is second.caller
        tree.start("link within", "first", "link")
        assert current_caller() is speaking  # it is no root: nobody else takes its place
        tree.end("tool")
        tree.end("second")
        assert current_caller() is None


async def test_a_root_between_other_speakers_hangs_from_them(recorder: Recorder) -> None:
    """A run that is no root, and another framework, are always around what starts where they speak."""
    graph, crew = RunTree("graph", lambda: None), RunTree("crew")
    with open_attempt(attempt()):
        graph.open_agent(begun(graph.start("root", None, "root")), "root")
        graph.open(begun(graph.start("node", "root", "node")), "node", {})
        graph.open_agent(begun(graph.start("in the node", None, "low")), "low")
        graph.end("in the node")
        graph.end("node")
        crew.open_agent(begun(crew.start("crew", None, "crew")), "crew")
        crew.open_agent(begun(crew.start("same framework", None, "same")), "same")  # it does not know its bodies
        graph.open_agent(begun(graph.start("in the crew", None, "deep")), "deep")
        graph.end("in the crew")
        crew.end("same framework")
        crew.end("crew")
        graph.end("root")
    assert await recorded_parents(recorder) == {
        "invoke_agent root": None,
        "node": "invoke_agent root",
        "invoke_agent low": "node",
        "invoke_agent crew": "invoke_agent root",
        "invoke_agent same": "invoke_agent crew",
        "invoke_agent deep": "invoke_agent same",
    }


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_what_is_stopped_fails_if_what_is_above_fails(recorder: Recorder, error: Exception | None) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        tree.open_agent(begun(tree.start("root", None, "root")), "root")
        tree.start("link", "root", "link")
        tree.open(begun(tree.start("node", "link", "node")), "node", {})
        tree.open(begun(tree.start("call", "node", "call")), "chat m", {})
        for key in ("call", "node", "link"):
            tree.stop(key, KeyError(key))
        speaking = current_caller()
        assert speaking is not None
        assert speaking.agent == "root"
        assert speaking.outer is None  # what was stopped speaks no more
        tree.end("root", error)
        tree.stop("unknown", KeyError("unknown"))
    await recorder.flush()
    found = {span.name: span.attributes.get(semconv.ERROR_TYPE) for span in STORED}
    below, above = (None, None) if error is None else ("KeyError", "ValueError")
    assert found == {"chat m": below, "node": below, "invoke_agent root": above}
    ends = {span.name: span.end_time or 0 for span in STORED}
    assert ends["chat m"] <= ends["node"] <= ends["invoke_agent root"]


async def test_what_is_stopped_after_what_is_above_it_or_below_nothing_has_failed(recorder: Recorder) -> None:
    tree = RunTree("some")
    with open_attempt(attempt()):
        tree.open_agent(begun(tree.start("root", None, "root")), "root")
        tree.open(begun(tree.start("late", "root", "late")), "late", {})
        tree.end("root")
        tree.stop("late", KeyError("late"))
        tree.open(begun(tree.start("alone", None, "alone")), "alone", {})
        tree.stop("alone", KeyError("alone"))
    await recorder.flush()
    found = {span.name: span.attributes.get(semconv.ERROR_TYPE) for span in STORED}
    assert found == {"invoke_agent root": None, "late": "KeyError", "alone": "KeyError"}
