"""Shards on real servers: one is killed and returns, and several processes claim at once."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout
from leyden.core.data.run import Run
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.shard_lists import in_sqlite, write_list
from leyden.core.testing.store_contract.shared import span_of

pytestmark = pytest.mark.integration

CLAIMING = Path(__file__).with_name("processes.py")


@pytest.fixture
def two_redis() -> Generator[tuple[RedisServer, RedisServer]]:
    """Two Redis servers that a test may kill."""
    if PROGRAM is None:
        pytest.skip(NO_REDIS)
    with ExitStack() as stack:
        yield stack.enter_context(RedisServer()), stack.enter_context(RedisServer())


async def work(store: LightningStore, rollouts: int) -> tuple[dict[str, int], list[str]]:
    """Queue, claim, add spans and finish, one rollout after the other; return acknowledged spans, and errors."""
    stored: dict[str, int] = {}
    errors: list[str] = []
    for number in range(rollouts):
        try:
            await store.enqueue_rollout(number)
            claim = await store.dequeue_rollout("w")
            if claim is None:
                continue
            for span in range(3):
                await store.add_span(span_of(claim.attempt, f"{span}"))
                stored[claim.rollout_id] = stored.get(claim.rollout_id, 0) + 1
            await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")
        except StoreError as error:
            errors.append(str(error))
        await asyncio.sleep(0.01)
    return stored, errors


async def returned(store: LightningStore) -> None:
    async with asyncio.timeout(30):
        while (await store.query_rollouts(limit=0)).missing:
            await asyncio.sleep(0.1)


async def test_a_killed_redis_takes_only_its_share_along_and_loses_nothing(
    two_redis: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    uri = write_list(
        tmp_path / "shards.yaml", {name: server.uri() for name, server in zip("ab", two_redis, strict=True)}
    )
    store, other = await open_store(uri), await open_store(uri)
    before, errors = await work(store, 40)
    assert not errors and len(before) == 40
    working = asyncio.create_task(work(store, 60))
    await asyncio.sleep(0.1)
    two_redis[1].kill()
    during, errors = await working
    assert len(during) > 20
    for error in errors:
        assert re.match(r"shard b(:| \(redis\+unix://)", error) and "\n" not in error
    page = await other.query_rollouts()
    assert len(page.missing) == 1 and page.missing[0].startswith("shard b (redis+unix://")
    new = [await other.enqueue_rollout(number) for number in range(10)]
    claimed = await other.dequeue_many_rollouts(limit=10)
    assert {claim.rollout_id for claim in claimed} == {rollout.rollout_id for rollout in new}
    two_redis[1].start()
    await returned(store)
    await returned(other)
    for rollout_id, spans in {**before, **during}.items():
        assert (await other.query_spans(rollout_id)).total >= spans
        found = await store.get_rollout_by_id(rollout_id)
        assert isinstance(found, AttemptedRollout) and found.attempt.sequence_id == 1
    after, errors = await work(store, 20)
    assert not errors and len(after) == 20
    await store.close()
    await other.close()


async def test_a_killed_postgres_is_left_out_and_returns(postgres: PostgresServer, tmp_path: Path) -> None:
    with PostgresServer() as server:
        uri = write_list(
            tmp_path / "shards.yaml", {"a": postgres.uri_of(postgres.create()), "b": server.uri_of(server.create())}
        )
        store = await open_store(uri)
        rollouts = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        server.kill()
        claims = await store.dequeue_many_rollouts(limit=20, worker_id="w")
        assert 0 < len(claims) < 20
        page = await store.query_rollouts()
        assert len(page) == len(claims) and page.missing[0].startswith("shard b (postgresql://127.0.0.1")
        assert "leyden:" not in page.missing[0]
        new = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(5)])
        waiting = asyncio.create_task(store.dequeue_many_rollouts(limit=5, timeout=20))
        assert {claim.rollout_id for claim in await waiting} == {rollout.rollout_id for rollout in new}
        waiting = asyncio.create_task(store.dequeue_many_rollouts(limit=20, timeout=30))
        await asyncio.sleep(0.1)
        server.start()
        claims += await waiting
        assert {claim.rollout_id for claim in claims} == {rollout.rollout_id for rollout in rollouts}
        await store.close()


async def test_processes_claim_each_rollout_once(redis: RedisServer, tmp_path: Path) -> None:
    uris = {"a": redis.uri(uuid4().hex), "b": redis.uri(uuid4().hex)}
    uri = write_list(tmp_path / "shards.yaml", uris | in_sqlite("c"))
    store = await open_store(uri)
    requests = [EnqueueRollout(input=n, rollout_id=f"step-{n}" if n % 2 else None) for n in range(400)]
    queued = await store.enqueue_many_rollouts(requests)
    command = [sys.executable, str(CLAIMING), uri]
    running = [subprocess.Popen([*command, f"w{n}"], stdout=subprocess.PIPE, text=True) for n in range(4)]
    claimed = [(await asyncio.to_thread(process.communicate))[0].split() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert Counter(name for names in claimed for name in names) == Counter(rollout.rollout_id for rollout in queued)
    assert (await store.query_rollouts(status_in=["succeeded"], limit=0)).total == 400
    await store.close()


@pytest.mark.parametrize("what", ["a run", "a rollout"])
async def test_stores_that_exist_on_two_servers_are_refused(
    postgres: PostgresServer, redis: RedisServer, tmp_path: Path, what: str
) -> None:
    uris = {"a": postgres.uri_of(postgres.create()), "b": redis.uri(uuid4().hex)}
    for name, shard in uris.items():
        store = await open_store(shard)
        if what == "a run":
            await store.add_run(Run(run_id=f"run-{name}", name="r"))
        else:
            await store.enqueue_rollout(name)
        await store.close()
    with pytest.raises(UsageError, match=r"the shards a, b in .* all have rollouts or runs from before") as raised:
        await open_store(write_list(tmp_path / "shards.yaml", uris))
    assert "leyden:" not in str(raised.value)
    for name, shard in uris.items():  # each can be a shard beside empty ones
        store = await open_store(write_list(tmp_path / f"{name}.yaml", {name: shard} | in_sqlite(f"other-{name}")))
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(8)])
        await store.close()
        await (await open_store(f"shard:///{tmp_path}/{name}.yaml")).close()
