"""Any sequence of operations leaves the in-memory store and another with the same answers and the same contents."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.data.rollout import ATTEMPT_MOVES, ROLLOUT_MOVES, EnqueueRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.testing.factories import span
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.shard_lists import in_sqlite, write_list

OWN_TO_EACH = ("name", "uptime", "span_bytes", "evicted_attempts", "evicted_spans", "shards")
"""What only a store in memory, or one over shards, counts."""
MERGED = ("worker_id", "heartbeat_stats", "last_heartbeat_time", "last_dequeue_time")
"""Fields of a worker that shards report exactly, also where it has had several attempts at once."""
ROLLOUTS = ["r0", "r1", "r2"]
WORKERS = ["w0", "w1", None]
CONFIGS = [
    RolloutConfig(),
    RolloutConfig(max_attempts=2, retry_condition=("failed", "timeout", "unresponsive")),
    RolloutConfig(timeout_seconds=5, unresponsive_seconds=2, max_attempts=3, retry_condition=("unresponsive",)),
]

rollout_ids = st.sampled_from(ROLLOUTS)
attempt_ids = st.sampled_from(["latest", *(f"{name}-a{n}" for name in ROLLOUTS for n in (1, 2, 3))])


@dataclass(frozen=True)
class Step:
    """One operation, and how it reads when it fails."""

    name: str
    arguments: dict[str, Any] = field(hash=False)

    def run(self, store: LightningStore) -> Awaitable[Any]:
        operation: Callable[..., Awaitable[Any]] = getattr(store, self.name)
        return operation(**self.arguments)


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(name), st.fixed_dictionaries(arguments))


def spans_of(rollout_id: str, n: int, span_ids: list[str], number: int) -> list[Span]:
    return [
        span(
            f"span {span_id}",
            {"ids": span_id.encode(), "list": [1, 2]},
            rollout_id=rollout_id,
            attempt_id=f"{rollout_id}-a{n}",
            sequence_id=number,
            span_id=span_id,
            start_time=float(number),
        )
        for span_id in span_ids
    ]


batches = st.builds(
    spans_of, rollout_ids, st.integers(1, 3), st.lists(st.sampled_from("abcd"), max_size=3), st.sampled_from([0, 0, 7])
)
steps = st.one_of(
    step(
        "enqueue_many_rollouts",
        rollouts=st.lists(
            st.builds(
                EnqueueRollout,
                input=st.just({"q": [1]}),
                rollout_id=rollout_ids,
                config=st.sampled_from(CONFIGS),
                mode=st.sampled_from(["train", None]),
            ),
            max_size=3,
        ),
    ),
    step("dequeue_many_rollouts", limit=st.integers(0, 2), worker_id=st.sampled_from(WORKERS)),
    step("dequeue_rollout", worker_id=st.sampled_from(WORKERS)),
    step("start_attempt", rollout_id=rollout_ids, worker_id=st.sampled_from(WORKERS)),
    step("update_rollout", rollout_id=rollout_ids, status=st.sampled_from(sorted(ROLLOUT_MOVES))),
    step("update_rollout", rollout_id=rollout_ids, config=st.sampled_from(CONFIGS), metadata=st.just({"m": 1})),
    step(
        "update_attempt",
        rollout_id=rollout_ids,
        attempt_id=attempt_ids,
        status=st.sampled_from(sorted(ATTEMPT_MOVES)),
    ),
    step("update_attempt", rollout_id=rollout_ids, attempt_id=attempt_ids, worker_id=st.sampled_from(["w0", ""])),
    step("add_many_spans", spans=batches),
    step("get_next_span_sequence_id", rollout_id=rollout_ids, attempt_id=attempt_ids),
    step("update_resources", resources_id=st.sampled_from(["x", "y"]), resources=st.just({})),
    step("update_worker", worker_id=st.sampled_from(["w0", "w2"]), heartbeat_stats=st.just({"cpu": 1})),
    step("wait_for_rollouts", rollout_ids=st.lists(rollout_ids, max_size=3), timeout=st.just(0)),
    step("query_spans", rollout_id=rollout_ids, attempt_id=attempt_ids, name_contains=st.sampled_from("ab ")),
    step(
        "query_rollouts",
        status_in=st.none() | st.lists(st.sampled_from(sorted(ROLLOUT_MOVES)), max_size=2),
        rollout_id_contains=st.sampled_from([None, "1", "r"]),
        filter_logic=st.sampled_from(["and", "or"]),
        sort_by=st.sampled_from([None, "end_time", "status", "mode", "start_time"]),
        sort_order=st.sampled_from(["asc", "desc"]),
        limit=st.integers(-1, 2),
        offset=st.integers(0, 2),
    ),
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def outcome(work: Awaitable[Any], workers: tuple[str, ...]) -> Any:
    """What a call returns or raises; of a worker, only the fields `workers`."""
    try:
        found = await work
    except ValueError as error:
        return type(error), str(error)
    return [getattr(found, name) for name in workers] if isinstance(found, Worker) else found


async def contents(store: LightningStore, workers: tuple[str, ...]) -> list[Any]:
    found: list[Any] = [
        {name: count for name, count in (await store.statistics()).items() if name not in OWN_TO_EACH},
        await store.query_rollouts(),
        [[getattr(worker, name) for name in workers] for worker in await store.query_workers()],
    ]
    for rollout_id in ROLLOUTS:
        found += [await store.query_attempts(rollout_id), await store.query_spans(rollout_id)]
    for name in ("x", "y"):
        found += [await store.get_resources_by_id(name, version) for version in (None, 1, 2)]
    return [*found, await store.query_resources(), await store.get_latest_resources()]


async def agree(
    sequence: list[tuple[float, Step]], uri: str, workers: tuple[str, ...] = Worker.__struct_fields__
) -> None:
    clock = Clock()
    memory, other = MemoryStore(clock), await open_store(uri, clock=clock)
    try:
        for seconds, operation in sequence:
            clock.now += seconds
            expected = await outcome(operation.run(memory), workers)
            assert await outcome(operation.run(other), workers) == expected, operation
            assert await contents(memory, workers) == await contents(other, workers), operation
    finally:
        await memory.close()
        await other.close()


few = settings(max_examples=25)
sequences = given(st.lists(st.tuples(st.sampled_from([0.0, 0.0, 1.0, 3.0]), steps), min_size=5, max_size=25))


@few
@sequences
def test_memory_and_sqlite_agree(sequence: list[tuple[float, Step]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(agree([*_begun(), *sequence], f"sqlite:///{folder}/store.db"))


@few
@sequences
def test_memory_and_shards_agree(sequence: list[tuple[float, Step]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = write_list(Path(folder) / "shards.yaml", in_sqlite("a", "b", "c"))
        asyncio.run(agree([*_begun(), *sequence], uri, MERGED))


@pytest.mark.long
@settings(few, max_examples=12)
@sequences
def test_memory_and_postgres_agree(
    postgres: PostgresServer, shared_database: str, sequence: list[tuple[float, Step]]
) -> None:
    postgres.empty(shared_database)
    asyncio.run(agree([*_begun(), *sequence], postgres.uri_of(shared_database)))


@pytest.mark.long
@few
@sequences
def test_memory_and_redis_agree(redis: RedisServer, sequence: list[tuple[float, Step]]) -> None:
    asyncio.run(agree([*_begun(), *sequence], redis.uri(uuid4().hex)))


async def test_rollouts_overdue_at_once_are_tried_again_in_the_order_of_creation(tmp_path: Path) -> None:
    names, config = ("r2", "r0", "r1"), CONFIGS[2]
    queued = [EnqueueRollout(input=1, rollout_id=name, config=config) for name in names]
    sequence = [
        (0.0, Step("enqueue_many_rollouts", {"rollouts": queued})),
        (0.0, Step("dequeue_many_rollouts", {"limit": 3})),
        (3.0, Step("dequeue_many_rollouts", {"limit": 3})),
    ]
    await agree(sequence, f"sqlite:///{tmp_path}/store.db")
    clock = Clock()
    store = MemoryStore(clock)
    for _, operation in sequence[:2]:
        await operation.run(store)
    clock.now += 3.0
    assert [claim.rollout_id for claim in await store.dequeue_many_rollouts(limit=3)] == list(names)
    await store.close()


def _begun() -> list[tuple[float, Step]]:
    queued = [EnqueueRollout(input=1, rollout_id=f"r{n}", config=CONFIGS[n]) for n in (1, 2)]
    return [(0.0, Step("enqueue_many_rollouts", {"rollouts": queued})), (0.0, Step("dequeue_rollout", {}))]


async def test_a_worker_that_is_busy_on_two_shards_has_the_same_merged_fields(tmp_path: Path) -> None:
    """Found by the sequences above: the times of two shards differ from those of one store, which knows one."""
    uri = write_list(tmp_path / "shards.yaml", in_sqlite("a", "b", "c"))
    operations = [
        (0.0, Step("start_attempt", {"rollout_id": "r1", "worker_id": "w0"})),
        (0.0, Step("dequeue_rollout", {"worker_id": "w0"})),
        (3.0, Step("update_worker", {"worker_id": "w0", "heartbeat_stats": {"cpu": 1}})),
    ]
    await agree([*_begun(), *operations], uri, MERGED)
