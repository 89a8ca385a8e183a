"""A small write is made on the event loop's own thread, from cached data, and leaves what any other write leaves."""

import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError

from leyden.core.data.rollout import AttemptedRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.store.redis.connection import RedisLink
from leyden.core.store.redis.scripts import COMMIT
from leyden.core.store.redis.store import RedisStore
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.store_contract.shared import claimed, span_of

CONFIG = RolloutConfig(unresponsive_seconds=5, max_attempts=2, retry_condition=("unresponsive",))


class Store:
    """A store, its clock, and which scripts its event loop ran since they were last asked for."""

    def __init__(self, store: RedisStore, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.clock = store, clock
        self.link: RedisLink = store._write_link  # pyright: ignore[reportPrivateUsage] - what is run is not to be seen otherwise
        self.ran = Counter[str]()
        run_soon = self.link.run_soon

        def noting(seconds: float, script: str, *arguments: bytes | str) -> Any:
            answer = run_soon(60.0, script, *arguments)
            assert script == COMMIT
            self.ran[(answer or b"lost").partition(b" ")[0].decode()] += 1
            return answer

        monkeypatch.setattr(self.link, "run_soon", noting)

    def scripts(self) -> Counter[str]:
        ran, self.ran = self.ran, Counter[str]()
        store: Any = self.store
        store._near_from = 0.0  # it may have taken Redis to be far, on a busy machine
        return ran


@asynccontextmanager
async def pair(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Store, Store]]:
    clock, uri = [1000.0], server.uri(uuid4().hex)
    stores = [Store(await RedisStore.open(uri, lambda: clock[0]), clock, monkeypatch) for _ in range(2)]
    yield stores[0], stores[1]
    for each in stores:
        await each.store.close()


@pytest.fixture(scope="module")
def prompt() -> Generator[RedisServer]:
    """A Redis whose file is always written when it answers."""
    if PROGRAM is None:
        pytest.skip(NO_REDIS)
    with RedisServer({"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def two(prompt: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Store, Store]]:
    async with pair(prompt, monkeypatch) as stores:
        yield stores


async def running(at: Store) -> AttemptedRollout:
    got = await claimed(at.store, CONFIG)
    await at.store.add_span(span_of(got.attempt, "a"))
    at.scripts()
    return got


async def test_spans_one_by_one_leave_what_several_at_once_leave(two: tuple[Store, Store]) -> None:
    here, _ = two
    left: list[Any] = []
    for together in (False, True):
        got = await running(here)
        here.clock[0] += 1
        new = [span_of(got.attempt, name) for name in "bcd"]
        if together:
            assert len(await here.store.add_many_spans(new)) == 3
        else:
            assert [await here.store.add_span(span) for span in new] == [
                *await here.store.query_spans(got.rollout_id, offset=1)
            ]
        assert here.scripts() == {"done": 1 if together else 3}
        spans = await here.store.query_spans(got.rollout_id)
        (attempt,) = await here.store.query_attempts(got.rollout_id)
        left.append(
            (
                [(span.sequence_id, span.span_id, span.attributes) for span in spans],
                (attempt.status, attempt.last_heartbeat_time == here.clock[0]),
                await here.store.get_next_span_sequence_id(got.rollout_id, got.attempt.attempt_id),
            )
        )
    assert left[0] == left[1] and left[0][2] == 5
    assert (await here.store.statistics())["total_spans"] == 8


async def test_a_known_span_a_given_number_and_an_ended_attempt_are_decided_by_the_rules(
    two: tuple[Store, Store],
) -> None:
    here, _ = two
    got = await running(here)

    async def numbers() -> list[int]:
        return [span.sequence_id for span in await here.store.query_spans(got.rollout_id)]

    assert await here.store.add_span(span_of(got.attempt, "a")) is None  # it is there
    assert here.scripts() == {"stale": 1} and await numbers() == [1]
    await here.store.add_span(span_of(got.attempt, "b", 7))  # it brings its number
    await here.store.add_span(span_of(got.attempt, "c", 3))  # they are out of order now
    await here.store.add_span(span_of(got.attempt, "d"))
    assert here.scripts() == {"done": 3} and await numbers() == [1, 3, 7, 8]
    await here.store.update_attempt(got.rollout_id, "latest", status="succeeded")
    here.scripts()
    await here.store.add_span(span_of(got.attempt, "e"))
    assert here.scripts() == {"done": 1} and await numbers() == [1, 3, 7, 8, 9]


async def test_what_another_store_has_changed_is_looked_at_first(two: tuple[Store, Store]) -> None:
    here, there = two
    got = await running(here)
    await there.store.add_span(span_of(got.attempt, "b"))
    stored = await here.store.add_span(span_of(got.attempt, "c"))
    assert stored is not None and stored.sequence_id == 3
    assert here.scripts() == {"stale": 1}
    await there.store.update_attempt(got.rollout_id, "latest", status="failed")
    await here.store.add_span(span_of(got.attempt, "d"))
    rollout = await here.store.get_rollout_by_id(got.rollout_id)
    assert rollout is not None and rollout.status == "failed"


async def test_what_is_overdue_comes_first(two: tuple[Store, Store]) -> None:
    here, _ = two
    silent, got = await running(here), await running(here)
    here.clock[0] += 3
    await here.store.add_span(span_of(got.attempt, "b"))
    here.clock[0] += 3
    here.scripts()
    await here.store.add_span(span_of(got.attempt, "c"))
    assert here.scripts() == {"due": 1}
    found = await here.store.query_rollouts()
    assert {rollout.rollout_id: rollout.status for rollout in found} == {
        silent.rollout_id: "requeuing",
        got.rollout_id: "running",
    }


@pytest.mark.parametrize("lost", ["before it was asked", "after it was asked"])
async def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    two: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    here, there = two
    got = await running(here)
    run_soon, call_once, losses = here.link.run_soon, here.link.call_once, itertools.count()

    def late(seconds: float, script: str, *arguments: bytes | str) -> None:
        if lost == "after it was asked":
            run_soon(seconds, script, *arguments)
        here.link.drop()

    def losing(*arguments: bytes | str) -> Any:
        answer = call_once(*arguments)
        if arguments[0] == "EVALSHA" and next(losses) < 2:
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(here.link, "run_soon", late)
    monkeypatch.setattr(here.link, "call_once", losing)
    stored = await here.store.add_span(span_of(got.attempt, "b"))
    assert isinstance(stored, Span) and stored.sequence_id == 2
    assert [span.sequence_id for span in await there.store.query_spans(got.rollout_id)] == [1, 2]
    assert (await there.store.statistics())["total_spans"] == 2


async def test_an_answer_waits_for_the_file_and_then_spans_are_stored_at_once_again(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(redis, monkeypatch) as (here, _):
        got = await running(here)
        run_soon, call = here.link.run_soon, here.link.call_connected
        looks = iter([b"aof_pending_bio_fsync:1", b"aof_pending_bio_fsync:0"])

        def late(seconds: float, script: str, *arguments: bytes | str) -> Any:
            answer = run_soon(seconds, script, *arguments)
            return answer and answer.replace(b"done", b"wait")

        def told(*command: bytes | str) -> Any:
            return next(looks) if command[0] == "INFO" else call(*command)

        with monkeypatch.context() as patched:
            patched.setattr(here.link, "run_soon", late)
            patched.setattr(here.link, "call_connected", told)
            stored = await here.store.add_span(span_of(got.attempt, "b"))
            assert stored is not None and stored.sequence_id == 2 and next(looks, None) is None
        here.ran.clear()
        for n in range(50):  # the other thread may be at its end when the first of them comes, but not for a second
            await here.store.add_span(span_of(got.attempt, f"c{n:x}"))
            if here.ran:
                break
        assert here.ran.keys() <= {"done", "wait"} and here.ran
