"""Checks of values in a store: every value is accepted, as a span, a task or a note, and is read as it was stored."""

import asyncio
import time
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.plain.span_sizes import LARGEST
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import MOST_BYTES, Span
from leyden.core.store.base import LightningStore
from leyden.core.testing.any_values.strategies import AnySpan, AnyValue

_SMALL = 1000
"""Limit for characters, bytes, and the absolute value of a number."""


class Taken(NamedTuple):
    """Time and size of storing a value."""

    seconds: float
    bytes: int


async def check_span(store: LightningStore, attempt: Attempt, recipe: AnySpan, span_id: str) -> Taken:
    """Store a span with arbitrary values; raises AssertionError unless it is stored, and read as it was stored."""
    ids = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id, "span_id": span_id}
    span = await asyncio.to_thread(recipe.made, **ids)
    began = time.monotonic()
    stored = await store.add_span(span)
    seconds = time.monotonic() - began
    assert stored is not None, f"span {span_id} was lost: {recipe}"
    assert not (lost := small_attributes_lost(span, stored)), f"attributes {lost} were lost: {recipe}"
    found = await store.query_spans(attempt.rollout_id, attempt.attempt_id, span_id=span_id)
    assert found.total == 1, f"span {span_id} is not there: {recipe}"
    return Taken(seconds, same(stored, found.items[0], recipe))


def small_attributes_lost(given: Span, kept: Span) -> list[str]:
    """Return the names of attributes that are small and plain in `given`, and missing or changed in `kept`.

    There must be none, unless other attributes are so large that the whole span had to be shortened.
    """
    if kept.bytes() > LARGEST // 2 or type(given.attributes) is not dict:
        return []
    attributes = cast("dict[Any, Any]", given.attributes)
    if any(type(name) is not str for name in attributes):  # one of them may have replaced another's name
        return []
    small = {name: value for name, value in attributes.items() if _is_small(name) and _is_small(value)}
    small.pop(semconv.REDUCED, None)
    return [name for name, value in small.items() if name not in kept.attributes or kept.attributes[name] != value]


def _is_small(value: Any) -> bool:
    kind = cast("type[object]", type(value))  # not `isinstance`, since some values define their own `__class__`
    if kind is str:
        return len(value) < _SMALL and value.isascii() and value.isprintable()
    if kind is bytes:
        return len(value) < _SMALL
    return kind is bool or ((kind is int or kind is float) and -_SMALL < value < _SMALL)


async def check_documents(store: LightningStore, recipe: AnyValue, name: str) -> Taken:
    """Store a value as a task, and in the notes of a rollout, an attempt and a worker; raises AssertionError."""
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
    """Check that `read` equals `stored`, and return its size in bytes; encoded forms are compared because of NaN."""
    if isinstance(stored, Span):
        stored = replace(stored, resource=dict(stored.resource))
    have, wanted = msgspec.msgpack.encode(read), msgspec.msgpack.encode(stored)
    assert have == wanted, f"it is read otherwise than it was stored: {recipe}"
    assert len(wanted) <= MOST_BYTES + (1 << 20), f"it has {len(wanted)} bytes: {recipe}"
    msgspec.json.encode(read)
    return len(wanted)
