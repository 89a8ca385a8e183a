"""Batches and streams: runs that are under way at once in one context, and runs that are left or stopped."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import Caller, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import CONTENT
from leyden.langchain import LangChainInstrumentor

HI: Any = {"messages": [("user", "hi")]}


def saying(text: str = "fine") -> FakeListChatModel:
    return FakeListChatModel(responses=[text])


def graph(nodes: dict[str, Any], *edges: tuple[str, str], **compiled: Any) -> Any:
    """A graph that begins at its first node."""
    built = StateGraph(MessagesState)
    for name, node in nodes.items():
        built.add_node(name, node)
    for edge in ((START, next(iter(nodes))), *edges):
        built.add_edge(*edge)
    return built.compile(**compiled)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanTape]:
    monkeypatch.setenv(CONTENT, "true")
    tape = SpanTape()
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)
    yield tape
    LangChainInstrumentor().uninstrument()


def half_of(number: int) -> int:
    """Note a reward for whoever speaks, then halve."""
    emit_reward(number)
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def halving() -> Any:
    return RunnableLambda(half_of) | RunnableLambda(str) | saying()


def test_the_runs_of_a_batch_stand_beside_one_another(tape: SpanTape) -> None:
    """LangChain starts all of them in one context, before the first does anything."""
    with open_attempt(factories.attempt()) as opened:
        halving().batch([2, 4, 6], {"run_name": "halve"})
        assert current_caller() is None
        saying().invoke("x")
    assert sorted(tape.tree()) == sorted([*["invoke_agent halve", "  chat model"] * 3, "chat model"])
    roots = {span.context.span_id for span in tape.spans("invoke_agent halve") if span.context}
    assert {span.parent.span_id for span in tape.spans("chat model") if span.parent} == roots
    assert {int(str(note.parent_id), 16) for note in opened.notes} == roots  # each for its own run


def test_what_fails_in_a_batch_fails_alone(tape: SpanTape) -> None:
    results = halving().batch([2, 3, 6], {"run_name": "halve"}, return_exceptions=True)
    assert [type(result) for result in results] == [AIMessage, ValueError, AIMessage]
    roots = tape.spans("invoke_agent halve")
    assert [span.parent for span in roots] == [None] * 3
    [failed] = [span for span in roots if span.status.status_code.name == "ERROR"]
    assert not [span for span in tape.spans("chat model") if span.parent == failed.context]


def test_a_batch_hangs_from_who_speaks_around_it(tape: SpanTape) -> None:
    """Here another framework speaks."""
    crew = Caller(agent="crew", trace_id="ab" * 16, span_id="12" * 8, framework="crewai")
    set_caller(crew)
    try:
        halving().batch([2, 4], {"run_name": "halve"})
        assert current_caller() is crew
    finally:
        set_caller(None)
    assert [span.parent.span_id for span in tape.spans("invoke_agent halve") if span.parent] == [0x1212121212121212] * 2


def words(*said: str) -> Any:
    return graph(
        {word: lambda state: {"messages": saying().invoke("x")} for word in said}, *pairwise(said), name=said[0]
    )


@pytest.mark.parametrize("streamed", ["graph", "chain", "model"])
def test_a_run_between_the_steps_of_a_stream_is_not_inside_it(streamed: str, tape: SpanTape) -> None:
    planners = {"graph": words("plan", "again"), "chain": RunnableLambda(str) | saying("ab"), "model": saying("ab")}
    with open_attempt(factories.attempt()) as opened:
        stream = planners[streamed].stream("hi" if streamed == "model" else HI)
        next(stream)
        words("write").invoke(HI)
        emit_reward(1.0)
        list(stream)
        assert current_caller() is None
    whole = ["invoke_agent write", "  node write", "    chat model"]
    planned = {
        "graph": [*["invoke_agent plan", "  node plan", "    chat model"], *whole, *["  node again", "    chat model"]],
        "chain": ["invoke_agent RunnableSequence", "  chat model", *whole],
        "model": ["chat model", *whole],
    }
    assert tape.tree() == planned[streamed]
    assert [note.parent_id for note in opened.notes] == [None]


async def test_a_run_between_the_steps_of_an_async_stream_is_not_inside_it(tape: SpanTape) -> None:
    stream = words("plan", "again").astream(HI)
    await anext(stream)
    await words("write").ainvoke(HI)
    assert [step async for step in stream]
    assert [line for line in tape.tree() if "invoke_agent" in line] == ["invoke_agent plan", "invoke_agent write"]
    assert current_caller() is None


@pytest.mark.parametrize("how", ["invoke", "batch"])
def test_a_run_with_callbacks_of_its_own_is_inside_the_run_that_calls_it(how: str, tape: SpanTape) -> None:
    """Callbacks given to it take the place of those that name the run above; LangChain's context still knows it."""
    given: Any = {"callbacks": [BaseCallbackHandler()], "run_name": "halve"}

    def call(numbers: list[int]) -> Any:
        return halving().batch(numbers, given) if how == "batch" else halving().invoke(numbers[0], given)

    RunnableLambda(call).invoke([2, 4])
    halves = ["  invoke_agent halve"] * (2 if how == "batch" else 1)
    assert tape.tree()[: len(halves) + 1] == ["invoke_agent call", *halves]
    assert tape.tree()[len(halves) + 1 :] == ["    chat model"] * len(halves)


async def slowly(state: Any) -> dict[str, Any]:
    """A node whose model has not said all when its graph ends."""
    async for _ in FakeListChatModel(responses=["ab"], sleep=0.1).astream("x"):
        pass
    return {}


def ends(tape: SpanTape) -> dict[str, tuple[str, Any, Any]]:
    """Return how each span ended: its status, and what it says of an error."""
    return {
        span.name: (
            span.status.status_code.name,
            (span.attributes or {}).get(semconv.ERROR_TYPE),
            span.status.description,
        )
        for span in tape.spans()
    }


@pytest.mark.parametrize("stream_mode", ["messages", "updates"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_stream_that_is_left_ends_its_spans_without_an_error(
    depth: int, stream_mode: Any, tape: SpanTape
) -> None:
    async def read_one_step() -> None:
        async for _ in whole.astream(HI, stream_mode=stream_mode, subgraphs=True):
            return

    inner = graph({"slow": slowly, "quick": lambda state: {}}, (START, "quick"), name="whole")
    whole = inner if depth == 1 else graph({"outer": inner}, name="around")
    await read_one_step()
    while len(tape.spans()) < 2 + 2 * depth:  # the loop closes what nobody reads any more
        await asyncio.sleep(0.01)
    assert set(ends(tape).values()) == {("UNSET", None, None)}
    assert {"chat model", "node slow", "node quick", "invoke_agent whole"} <= set(ends(tape))
    assert current_caller() is None


def test_a_sync_stream_that_is_left_ends_its_spans_without_an_error(tape: SpanTape) -> None:
    for streamed in (words("plan", "again"), RunnableLambda(str) | saying("ab"), saying("ab")):
        stream: Any = streamed.stream("hi" if isinstance(streamed, FakeListChatModel) else HI)
        next(stream)
        stream.close()
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}
    assert {"invoke_agent plan", "invoke_agent RunnableSequence", "chat model"} <= set(ends(tape))


@pytest.mark.parametrize("how", ["time", "peer", "cancelled"])
async def test_what_is_stopped_since_its_graph_fails_has_failed(how: str, tape: SpanTape) -> None:
    async def fail(state: Any) -> None:
        await asyncio.sleep(0.02)
        raise KeyError("no")

    peers = ((START, "fail"),) if how == "peer" else ()
    whole = graph({"slow": slowly, "fail": fail}, *peers, name="whole")
    whole.step_timeout = 0.02 if how == "time" else None
    with pytest.raises((KeyError, TimeoutError)):
        await asyncio.wait_for(whole.ainvoke(HI), 0.05 if how == "cancelled" else 5)
    found = ends(tape)
    for stopped in ("chat model", "node slow"):
        status, error_type, message = found[stopped]
        assert (status, error_type, message or None) == ("ERROR", "CancelledError", None)
    assert found["invoke_agent whole"][0] == "ERROR"
