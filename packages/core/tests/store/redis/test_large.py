"""Large spans go ahead of the script that commits them, in one transaction: all are stored, once and whole, or none."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError

from leyden.core.data.rollout import Attempt, AttemptedRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.redis.connection import RedisLink
from leyden.core.store.redis.store import RedisStore
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.store_contract.shared import attempt_now, claimed, span_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=NO_REDIS)

Two = tuple[RedisStore, RedisStore]


@pytest.fixture
async def two(redis: RedisServer) -> AsyncGenerator[Two]:
    uri = redis.uri(uuid4().hex)
    stores = await RedisStore.open(uri), await RedisStore.open(uri)
    yield stores
    for store in stores:
        await store.close()


def large(attempt: Attempt, names: str) -> list[Span]:
    return [replace(span_of(attempt, name), attributes={"text": name * 10_000}) for name in names]


async def running(store: RedisStore, config: RolloutConfig | None = None) -> AttemptedRollout:
    """Claim a rollout, and let its attempt run, which the store then knows of."""
    got = await claimed(store, config)
    await store.add_span(span_of(got.attempt, "0"))
    return got


async def stored(store: RedisStore, got: AttemptedRollout) -> dict[str, int]:
    """Ids and numbers of the spans that are there, each of which must be whole."""
    page = await store.query_spans(got.rollout_id)
    found = {span.span_id.lstrip("0"): span for span in page}
    assert [span.attributes.get("text", "") for span in page] == [name * 10_000 for name in found]
    return {name: span.sequence_id for name, span in found.items()}


def link_of(store: RedisStore) -> RedisLink:
    return store._write_link  # pyright: ignore[reportPrivateUsage] - what is sent is not to be seen otherwise


def noted(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what the commits with something ahead of them are answered from now on."""
    link, answers = link_of(store), Counter[str]()
    run_behind = link.run_behind

    def noting(ahead: Sequence[Sequence[bytes | str]], script: str, *arguments: bytes | str) -> Any:
        answer = run_behind(ahead, script, *arguments)
        answers[answer.partition(b" ")[0].decode().replace("wait", "done")] += 1
        return answer

    monkeypatch.setattr(link, "run_behind", noting)
    return answers


async def test_they_are_stored_once_in_order_and_again_not_at_all(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = two
    answers = noted(here, monkeypatch)
    got, other = await running(here), await running(here)
    assert len(await here.add_many_spans([*large(got.attempt, "ab"), *large(other.attempt, "c")])) == 3
    assert answers == {"done": 1}
    assert await here.add_many_spans(large(got.attempt, "ba")) == []
    assert [span.span_id[-1] for span in await here.add_many_spans(large(got.attempt, "bcd"))] == ["c", "d"]
    assert answers == {"done": 2, "stale": 2}  # what was there was found by the commit first
    assert await stored(there, got) == {"": 1, "a": 2, "b": 3, "c": 4, "d": 5}
    assert await stored(there, other) == {"": 1, "c": 2}
    assert (await there.statistics())["total_spans"] == 7


async def test_what_another_store_has_added_meanwhile_comes_before(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = two
    got = await running(here)
    answers = noted(here, monkeypatch)
    await there.add_many_spans(large(got.attempt, "ab"))
    assert [span.sequence_id for span in await here.add_many_spans(large(got.attempt, "cbd"))] == [4, 5]
    assert answers == {"stale": 1, "done": 1}
    assert await stored(there, got) == {"": 1, "a": 2, "b": 3, "c": 4, "d": 5}


async def test_an_attempt_that_is_overdue_is_ended_first(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    store = await RedisStore.open(redis.uri(uuid4().hex), lambda: clock[0])
    got = await running(store, RolloutConfig(timeout_seconds=5))
    answers = noted(store, monkeypatch)
    clock[0] = 1010.0
    assert len(await store.add_many_spans(large(got.attempt, "ab"))) == 2
    assert answers == {"due": 1, "done": 1} or answers == {"due": 1, "stale": 1, "done": 1}
    assert (await attempt_now(store, got.attempt)).status == "timeout"
    assert await stored(store, got) == {"": 1, "a": 2, "b": 3}
    await store.close()


@pytest.mark.parametrize("lost", ["before it was asked", "after it was asked"])
async def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_done_twice(
    two: Two, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    here, there = two
    got = await running(here)
    link: Any = link_of(here)
    exchanged, losses = link._exchange, 0

    def losing(*commands: Sequence[bytes | str]) -> Any:
        nonlocal losses
        is_lost = commands[0][0] == "MULTI" and losses < 2
        answer = None if is_lost and lost == "before it was asked" else exchanged(*commands)
        losses += is_lost
        if is_lost:
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(link, "_exchange", losing)
    assert len(await here.add_many_spans(large(got.attempt, "abc"))) == 3
    assert losses == 2
    assert await stored(there, got) == {"": 1, "a": 2, "b": 3, "c": 4}
    assert (await there.statistics())["total_spans"] == 4


async def test_a_redis_that_has_forgotten_the_scripts_makes_all_or_nothing(two: Two) -> None:
    here, there = two
    got = await running(here)
    link_of(here).call("SCRIPT", "FLUSH")
    assert len(await here.add_many_spans(large(got.attempt, "ab"))) == 2
    assert await stored(there, got) == {"": 1, "a": 2, "b": 3}


async def test_a_redis_without_memory_refuses_them_whole() -> None:
    with RedisServer({"maxmemory": "4mb"}) as server:
        store = await RedisStore.open(server.uri())
        got, added = await running(store), 0
        with pytest.raises(StoreError, match=r"used memory > 'maxmemory'"):
            while True:
                texts = [
                    replace(span_of(got.attempt, f"a{added + n:x}"), attributes={"t": "x" * 50_000}) for n in range(4)
                ]
                await store.add_many_spans(texts)
                added += 4
        assert added and len(await store.query_spans(got.rollout_id)) == added + 1
        assert (await store.statistics())["total_spans"] == added + 1
        await store.close()


async def test_a_script_that_fails_leaves_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = two
    got = await running(here)
    link = link_of(here)
    run_behind = link.run_behind

    def broken(ahead: Sequence[Sequence[bytes | str]], script: str, *arguments: bytes | str) -> Any:
        return run_behind(ahead, script.replace("'SMISMEMBER'", "'SMISSED'"), *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(link, "run_behind", broken)
        with pytest.raises(StoreError, match="Redis command"):
            await here.add_many_spans(large(got.attempt, "ab"))
    assert await stored(there, got) == {"": 1}
    assert len(await here.add_many_spans(large(got.attempt, "ab"))) == 2


async def test_many_writers_in_two_stores_get_a_number_each(two: Two) -> None:
    got = await running(two[0])
    names = "123456789abcdef"
    pairs = [large(got.attempt, one + other) for one, other in zip(names[::2], names[1::2], strict=False)]
    await asyncio.gather(*(two[n % 2].add_many_spans(pair) for n, pair in enumerate(pairs)))
    found = await stored(two[0], got)
    assert sorted(found.values()) == list(range(1, 2 * len(pairs) + 2))
