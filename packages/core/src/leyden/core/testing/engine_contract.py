"""`EngineContract`: requirements on every `Engine`, as a test class to subclass. Implementations override no test.

Needs pytest with pytest-asyncio in auto mode.
"""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import cast

import msgspec
import pytest

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine, EngineRecord, GenerateRequest, TokenChunk
from leyden.core.errors import EngineError

GREEDY = Sampling(temperature=0, max_tokens=12)
PROMPT = [3, 1, 4, 1, 5]


def request(name: str, prompt: list[int] = PROMPT, *, sampling: Sampling = GREEDY, stop: int = -1) -> GenerateRequest:
    """Return a request; `stop` is its only stop id, negative for none."""
    stop_ids = () if stop < 0 else (stop,)
    return GenerateRequest(request_id=name, prompt_ids=prompt, sampling=sampling, stop_ids=stop_ids)


async def chunks_of(engine: Engine, call: GenerateRequest) -> list[TokenChunk]:
    """Return every chunk of the answer to `call`."""
    return [chunk async for chunk in engine.generate(call)]


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    """Return the ids of `chunks` in order."""
    return [token for chunk in chunks for token in chunk.ids]


def top_of(chunks: list[TokenChunk]) -> list[list[tuple[int, float]]]:
    """Return the likeliest tokens at every position of `chunks`; the test fails for a chunk without them."""
    assert all(chunk.top is not None and len(chunk.top) == len(chunk.ids) for chunk in chunks)
    return [top for chunk in chunks for top in chunk.top or []]


async def close_iterator(stream: AsyncIterator[TokenChunk]) -> None:
    """Abort the call behind `stream`."""
    await cast("AsyncGenerator[TokenChunk, None]", stream).aclose()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; raises TimeoutError after five seconds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


class EngineContract(ABC):
    """Subclass it as `TestXContract` and implement the abstract methods.

    Greedy answers must be a function of the prompt, and must not end by themselves before 200 tokens. They must arrive
    in several chunks, between which weights can be updated. Ids below 8 must be in the vocabulary.
    """

    @abstractmethod
    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        """Return an engine that is not started, at version 0, and its log of finished calls."""

    @abstractmethod
    def new_weights(self) -> Mapping[str, object]:
        """Return other weights that fit the model."""

    @abstractmethod
    def in_flight(self, engine: Engine) -> int:
        """Return the number of calls that hold a slot in `engine`."""

    @pytest.fixture
    async def served(self) -> AsyncIterator[tuple[Engine, list[EngineRecord]]]:
        """A started engine and its log."""
        engine, records = self.make_engine()
        await engine.start()
        yield engine, records
        await engine.close()

    @pytest.fixture
    def engine(self, served: tuple[Engine, list[EngineRecord]]) -> Engine:
        """A started engine."""
        return served[0]

    @pytest.fixture
    def records(self, served: tuple[Engine, list[EngineRecord]]) -> list[EngineRecord]:
        """The log of `engine`."""
        return served[1]

    async def test_an_answer_is_ids_with_two_log_probabilities_each(self, engine: Engine) -> None:
        chunks = await chunks_of(engine, request("a"))
        assert len(ids_of(chunks)) == 12
        for chunk in chunks:
            assert len(chunk.ids) == len(chunk.logprobs) == len(chunk.sampling_logprobs)
            assert chunk.version == 0
            assert all(value <= 0 for value in chunk.logprobs)
            assert chunk.sampling_logprobs == chunk.logprobs
            assert all(0 <= token < engine.model.vocab_size for token in chunk.ids)

    async def test_the_finish_reason_is_on_the_last_chunk_alone(self, engine: Engine) -> None:
        chunks = await chunks_of(engine, request("a"))
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == "length"

    async def test_a_stop_id_ends_the_answer_and_is_part_of_it(self, engine: Engine) -> None:
        free = ids_of(await chunks_of(engine, request("a")))
        stop = free[5]
        chunks = await chunks_of(engine, request("b", stop=stop))
        assert ids_of(chunks) == free[: free.index(stop) + 1]
        assert chunks[-1].finish_reason == "stop"

    async def test_a_stop_id_as_the_last_token_allowed_is_a_stop(self, engine: Engine) -> None:
        stop = ids_of(await chunks_of(engine, request("a", sampling=Sampling(temperature=0, max_tokens=1))))[0]
        chunks = await chunks_of(engine, request("b", sampling=Sampling(temperature=0, max_tokens=1), stop=stop))
        assert (ids_of(chunks), chunks[-1].finish_reason) == ([stop], "stop")

    async def test_without_max_tokens_the_answer_fills_the_context(self, engine: Engine) -> None:
        room = 20
        prompt = (PROMPT * engine.model.context_length)[: engine.model.context_length - room]
        chunks = await chunks_of(engine, request("a", prompt, sampling=Sampling(temperature=0)))
        assert len(ids_of(chunks)) == room
        assert chunks[-1].finish_reason == "length"

    @pytest.mark.parametrize("case", ["empty", "too long", "unknown id", "no tokens asked for"])
    async def test_a_request_that_cannot_be_answered_is_an_error(self, engine: Engine, case: str) -> None:
        length, vocab = engine.model.context_length, engine.model.vocab_size
        bad = {
            "empty": request("a", []),
            "too long": request("a", (PROMPT * length)[:length]),
            "unknown id": request("a", [1, vocab]),
            "no tokens asked for": request("a", sampling=Sampling(max_tokens=0)),
        }[case]
        with pytest.raises(EngineError):
            await chunks_of(engine, bad)
        assert self.in_flight(engine) == 0

    async def test_concurrent_calls_get_the_answers_they_get_alone(self, engine: Engine) -> None:
        prompts = [[1 + (n * k) % 7 for k in range(1, 3 + n)] for n in range(20)]
        alone = [ids_of(await chunks_of(engine, request(f"alone {n}", p))) for n, p in enumerate(prompts)]
        answers = await asyncio.gather(*(chunks_of(engine, request(f"{n}", p)) for n, p in enumerate(prompts)))
        assert [ids_of(answer) for answer in answers] == alone

    async def test_every_call_is_in_the_log_once_as_delivered(
        self, engine: Engine, records: list[EngineRecord]
    ) -> None:
        calls = [request(f"{n}", [*PROMPT, n]) for n in range(8)]
        answers = await asyncio.gather(*(chunks_of(engine, call) for call in calls))
        log = {record.request_id: record for record in records}
        assert len(records) == len(log) == len(calls)
        for call, answer in zip(calls, answers, strict=True):
            record = log[call.request_id]
            assert (record.prompt_ids, record.response_ids) == (call.prompt_ids, ids_of(answer))
            assert record.logprobs == [value for chunk in answer for value in chunk.logprobs]
            assert record.sampling_logprobs == [value for chunk in answer for value in chunk.sampling_logprobs]
            assert (record.version, record.versions, record.finish_reason) == (0, [(0, 12)], "length")

    async def test_closing_the_iterator_frees_the_slot_and_is_logged(
        self, engine: Engine, records: list[EngineRecord]
    ) -> None:
        stream = engine.generate(request("a", sampling=Sampling(temperature=0)))
        seen = [await anext(stream)]
        assert self.in_flight(engine) == 1
        await close_iterator(stream)
        await until(lambda: self.in_flight(engine) == 0)
        assert [(r.request_id, r.finish_reason, r.response_ids) for r in records] == [("a", "abort", ids_of(seen))]
        assert len(ids_of(await chunks_of(engine, request("b")))) == 12

    async def test_a_cancelled_caller_frees_its_slot(self, engine: Engine, records: list[EngineRecord]) -> None:
        task = asyncio.create_task(chunks_of(engine, request("a", sampling=Sampling(temperature=0))))
        await until(lambda: self.in_flight(engine) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: self.in_flight(engine) == 0 and len(records) == 1)
        assert records[0].finish_reason == "abort"

    async def test_new_weights_show_between_two_chunks(self, engine: Engine, records: list[EngineRecord]) -> None:
        stream = engine.generate(request("a", sampling=Sampling(temperature=0, max_tokens=200)))
        chunks = [await anext(stream)]
        await engine.update_weights(self.new_weights(), 7)
        assert engine.version == 7
        chunks += [chunk async for chunk in stream]
        versions = [chunk.version for chunk in chunks]
        assert versions == sorted(versions)
        assert (versions[0], versions[-1]) == (0, 7)
        assert len(ids_of(chunks)) == 200
        drawn_by = [chunk.version for chunk in chunks for _ in chunk.ids]
        assert records[0].versions == [(0, drawn_by.count(0)), (7, drawn_by.count(7))]
        assert records[0].version == 0

    async def test_score_agrees_with_what_was_drawn(self, engine: Engine) -> None:
        chunks = await chunks_of(engine, request("a"))
        scores = await engine.score(PROMPT + ids_of(chunks))
        assert len(scores) == len(PROMPT) + 12 - 1
        drawn = [value for chunk in chunks for value in chunk.logprobs]
        assert scores[len(PROMPT) - 1 :] == pytest.approx(drawn, abs=1e-4)

    async def test_the_likeliest_tokens_are_told_to_those_who_ask(self, engine: Engine) -> None:
        counts = [5, 0, 20]
        calls = [msgspec.structs.replace(request(f"{count}"), top_logprobs=count) for count in counts]
        few, none, many = await asyncio.gather(*(chunks_of(engine, call) for call in calls))
        assert ids_of(few) == ids_of(none) == ids_of(many)
        assert all(chunk.top is None for chunk in none)
        tops = top_of(few)
        assert [top[:5] for top in top_of(many)] == [[(i, pytest.approx(p, abs=1e-4)) for i, p in t] for t in tops]
        assert len(tops) == len(ids_of(few)) == 12
        for top, token, drawn in zip(tops, ids_of(few), (v for chunk in few for v in chunk.logprobs), strict=True):
            logprobs = [value for _, value in top]
            assert len(dict(top)) == len(top) == 5
            assert logprobs == sorted(logprobs, reverse=True)
            assert dict(top).get(token, drawn) == drawn
            assert token in dict(top) or drawn <= logprobs[-1]

    @pytest.mark.parametrize("count", [-1, 21])
    async def test_more_of_the_likeliest_tokens_than_there_may_be_are_refused(self, engine: Engine, count: int) -> None:
        with pytest.raises(EngineError, match="top_logprobs"):
            await chunks_of(engine, msgspec.structs.replace(request("a"), top_logprobs=count))
        assert self.in_flight(engine) == 0

    async def test_a_seed_makes_a_draw_repeatable(self, engine: Engine) -> None:
        sampling = Sampling(seed=5, max_tokens=30)
        alone = ids_of(await chunks_of(engine, request("a", sampling=sampling)))
        crowd = await asyncio.gather(*(chunks_of(engine, request(f"{n}", sampling=sampling)) for n in range(3)))
        assert [ids_of(answer) for answer in crowd] == [alone] * 3

    async def test_close_aborts_what_is_in_flight(self, engine: Engine, records: list[EngineRecord]) -> None:
        stream = engine.generate(request("a", sampling=Sampling(temperature=0)))
        seen = [await anext(stream)]
        await engine.close()
        async with asyncio.timeout(5):
            seen += [chunk async for chunk in stream]
        assert seen[-1].finish_reason == "abort"
        assert [(r.finish_reason, r.response_ids) for r in records] == [("abort", ids_of(seen))]
        assert self.in_flight(engine) == 0

    async def test_a_closed_engine_answers_nothing_and_closes_twice(self, engine: Engine) -> None:
        await engine.close()
        with pytest.raises(EngineError):
            await chunks_of(engine, request("a"))
        with pytest.raises(EngineError):
            await engine.score(PROMPT)
        await engine.close()
