"""What every store promises of any value: it is taken, as a span, a task or a note, and read as it was kept."""

import asyncio
import time
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import MOST_BYTES, Span
from leyden.core.store.base import LightningStore
from leyden.core.testing.any_values.strategies import AnySpan, AnyValue


class Taken(NamedTuple):
    """What it took to keep a value."""

    seconds: float
    bytes: int


async def check_span(store: LightningStore, attempt: Attempt, recipe: AnySpan, span_id: str) -> Taken:
    """Store a span of anything; raises AssertionError unless it is stored, and read as it was stored."""
    ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id, "span_id": span_id}
    span = await asyncio.to_thread(recipe.made, **ids)
    began = time.monotonic()
    stored = await store.add_span(span)
    seconds = time.monotonic() - began
    assert stored is not None, f"span {span_id} was lost: {recipe}"
    found = await store.query_spans(attempt.rollout_id, attempt.attempt_id, span_id=span_id)
    assert found.total == 1, f"span {span_id} is not there: {recipe}"
    return Taken(seconds, same(stored, found.items[0], recipe))


async def check_documents(store: LightningStore, recipe: AnyValue, name: str) -> Taken:
    """Keep a value as a task, and as what is noted of a rollout, an attempt and a worker; raises AssertionError."""
    several = await asyncio.to_thread(lambda: [recipe.made() for _ in range(4)])
    began = time.monotonic()
    made = await store.start_rollout(several[0], metadata={"held": several[1]}, worker_id=name)
    attempt = await store.update_attempt(made.rollout_id, "latest", metadata={"held": several[2]})
    worker = await store.update_worker(name, {"held": several[3]})
    seconds = time.monotonic() - began
    size = same((made.input, made.metadata), await _rollout(store, made.rollout_id), recipe)
    size += same(attempt, (await store.query_attempts(made.rollout_id)).items[0], recipe)
    size += same(
        worker.heartbeat_stats, (await store.query_workers(worker_id_contains=name))[0].heartbeat_stats, recipe
    )
    reasons = [notes.get(semconv.REDUCED) for notes in (made.metadata, attempt.metadata, worker.heartbeat_stats)]
    assert len({reason is None for reason in reasons}) == 1, f"it is whole in one place and not in another: {recipe}"
    return Taken(seconds, size)


async def _rollout(store: LightningStore, rollout_id: str) -> tuple[Any, Any]:
    found = await store.get_rollout_by_id(rollout_id)
    assert found is not None
    return found.input, found.metadata


def same(stored: Any, read: Any, recipe: object) -> int:
    """Return how many bytes there are; NaN is no number that equals itself, so bytes are compared."""
    if isinstance(stored, Span):
        stored = replace(stored, resource=dict(stored.resource))
    have, wanted = msgspec.msgpack.encode(read), msgspec.msgpack.encode(stored)
    assert have == wanted, f"it is read otherwise than it was stored: {recipe}"
    assert len(wanted) <= MOST_BYTES + (1 << 20), f"it has {len(wanted)} bytes: {recipe}"
    msgspec.json.encode(read)
    return len(wanted)
