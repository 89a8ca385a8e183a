"""Results that are not complete when they are returned are completed inside the attempt."""

import asyncio
import gc
import io
import itertools
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import pytest
from starlette.responses import StreamingResponse

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.rollout_function import rollout
from leyden.core.runner.attempts import results
from leyden.core.runner.attempts.results import completed
from leyden.core.testing.factories import span
from leyden.core.testing.running import error_of, rewards_in, run_one
from leyden.core.tracing.context import current_attempt

inside: list[bool] = []
"""Whether an attempt was open each time that an agent below did something."""


def work(piece: Any) -> Any:
    inside.append(current_attempt() is not None)
    return piece


def pieces(task: Any) -> Iterator[str]:
    yield work("fo")
    yield work("ur")


async def async_pieces(task: Any) -> AsyncIterator[str]:
    yield work("fo")
    await asyncio.sleep(0)
    yield work("ur")


class Async:
    """An async iterator that is no generator, as openai's streams are."""

    def __init__(self) -> None:
        self.left = ["ur", "fo"]

    def __aiter__(self) -> "Async":
        return self

    async def __anext__(self) -> str:
        if not self.left:
            raise StopAsyncIteration
        return work(self.left.pop())


async def later(task: Any) -> str:
    await asyncio.sleep(0)
    return work("four")


def returns_coroutine(task: Any) -> Any:
    return later(task)


def returns_async_pieces(task: Any) -> Any:
    return async_pieces(task)


async def awaits_pieces(task: Any) -> Any:
    return pieces(task)


async def returns_task(task: Any) -> Any:
    return asyncio.ensure_future(later(task))


def returns_stream(task: Any) -> Any:
    return Async()


def returns_future(task: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: "four")


def returns_map(task: Any) -> Any:
    return map(work, ["fo", "ur"])


def returns_response(task: Any) -> Any:
    return StreamingResponse(pieces(task))


class Streams:
    async def __call__(self, task: Any) -> Any:
        return async_pieces(task)


def score(task: Any, result: Any) -> float:
    return float(result == "four")


@pytest.mark.parametrize(
    "agent",
    [
        pieces,
        async_pieces,
        returns_stream,
        later,
        returns_coroutine,
        returns_async_pieces,
        awaits_pieces,
        returns_task,
        returns_future,
        returns_map,
        returns_response,
        Streams(),
    ],
)
async def test_all_of_an_agent_runs_inside_its_attempt(agent: Any) -> None:
    inside.clear()
    ended, spans = await run_one(agent, reward=score)
    assert ended.status == "succeeded"
    assert rewards_in(spans) == [1.0]
    assert all(inside)
    assert [s.attributes[semconv.RESULT] for s in spans if s.name == semconv.RESULT] == ["four"]


def returning() -> Generator[int, None, str]:
    yield 1
    return "the end"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([1, "a"], [1, "a"]),
        (iter([1, "a"]), [1, "a"]),
        (iter(["a", "b"]), "ab"),
        (iter([b"a", b"b"]), b"ab"),
        (iter(list[str]()), []),
        (returning(), "the end"),
        ("text", "text"),
    ],
)
async def test_pieces_of_one_kind_of_text_are_joined_and_others_are_a_list(result: Any, expected: Any) -> None:
    assert await completed(result) == expected


class OnlyNext:
    """An async iterator that cannot be gone through itself, which `async for` over its maker never notices."""

    async def __anext__(self) -> str:
        raise StopAsyncIteration


class MakesOnlyNext:
    def __aiter__(self) -> OnlyNext:
        return OnlyNext()


class GivesAnother:
    """An iterator that gives another one: its own `__next__` never ends."""

    def __iter__(self) -> Iterator[str]:
        return iter(["four"])

    def __next__(self) -> str:
        return "more"


async def test_what_is_iterated_is_what_a_loop_would_iterate() -> None:
    assert await completed(MakesOnlyNext()) == []
    assert await completed(GivesAnother()) == "four"
    assert await completed(MagicMock()) == []


async def test_parts_of_a_container_are_completed_one_level_down() -> None:
    found = await completed({"answer": pieces(None), "sure": later(None), "n": 1, "all": [returning()]})
    assert {**found, "all": None} == {"answer": "four", "sure": "four", "n": 1, "all": None}
    assert next(found["all"][0]) == 1
    assert await completed((async_pieces(None), 2)) == ("four", 2)
    assert await completed([returning(), iter("ab")]) == ["the end", "ab"]


@pytest.mark.parametrize(
    "result", [{"a": 1}, ["a"], ("a", None), object(), io.StringIO("file"), type("D", (dict,), {})()]
)
async def test_what_is_complete_is_the_very_object(result: Any) -> None:
    assert await completed(result) is result


async def test_what_is_not_reached_after_a_failure_never_runs(recwarn: pytest.WarningsRecorder) -> None:
    async def fails() -> None:
        raise LookupError("no luck")

    with pytest.raises(LookupError, match="no luck"):
        await completed([fails(), later(None)])
    gc.collect()
    assert not recwarn.list


async def test_an_error_between_two_pieces_is_the_agents() -> None:
    def agent(task: Any) -> Iterator[str]:
        yield "fo"
        raise LookupError("no luck")

    ended, _ = await run_one(agent)
    line = agent.__code__.co_firstlineno + 2
    assert error_of(ended) == {
        "kind": "agent",
        "type": "LookupError",
        "message": "no luck",
        "place": f"{__file__}, line {line}",
    }


async def test_an_endless_iterator_fails_instead_of_filling_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_PIECES", 100)
    with pytest.raises(LeydenError, match="more than 100 pieces"):
        await completed(itertools.count())


async def test_a_stream_is_left_where_its_attempt_is_cancelled() -> None:
    closed, begun = asyncio.Event(), asyncio.Event()

    async def agent() -> AsyncIterator[int]:
        try:
            yield 1
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    reading = asyncio.create_task(completed(agent()))
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert closed.is_set()


def spans_of(reward: float) -> Span:
    return span(semconv.REWARD, {semconv.REWARD_VALUE: reward}, rollout_id="", attempt_id="", span_id="2" * 16)


class Yields(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        yield spans_of(0.5)


class Hands(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        async def reward() -> float:
            return 0.5

        return reward()


@rollout
def yields(task: Any) -> Any:
    yield spans_of(0.5)


@pytest.mark.parametrize("agent", [Yields(), Hands(), yields])
async def test_a_typed_rollout_may_yield_its_spans_or_return_a_coroutine(agent: Any) -> None:
    ended, spans = await run_one(agent)
    assert ended.status == "succeeded", error_of(ended)
    assert rewards_in(spans) == [0.5]
