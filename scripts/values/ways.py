"""The ways by which a value gets into a store: each puts drawn values there, reads them back, and compares."""

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext

from leyden.core import emit_message, emit_object, emit_observation
from leyden.core.data import semconv
from leyden.core.data.plain.spans import is_plain_span
from leyden.core.data.resources import LLM
from leyden.core.data.rollout import Attempt, RolloutConfig
from leyden.core.data.run import Run, StepMetrics
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError, RewardError
from leyden.core.runner.attempts.annotations import exception_span, result_span
from leyden.core.store.base import LightningStore
from leyden.core.testing.any_values import Draws
from leyden.core.testing.any_values.checks import Taken, check_documents, check_span, same
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.emit import emit_exception, reward_attributes
from leyden.core.tracing.spans.export import Recorder
from leyden.core.tracing.spans.lightweight_spans import LightweightSpan, LightweightTracer

Way = Callable[[LightningStore, Attempt, Draws], Awaitable[Taken]]
"""Raises AssertionError for what was lost, and whatever else it raises is wrong, too."""


async def span(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """A span whose every field holds anything."""
    return await check_span(store, attempt, draws.span(), secrets.token_hex(8))


async def document(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """A task, and notes of a rollout, an attempt and a worker."""
    return await check_documents(store, draws.value(), f"w-{secrets.token_hex(4)}-")


async def otel(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """A span of OpenTelemetry's SDK."""
    number = secrets.randbits(63) + 1
    a, b, c, d, e = await _made(draws, 5)
    attributes: Any = {draws.text(8): a, "b": b}
    events: Any = [Event("e", {"c": c}), d]
    readable = ReadableSpan(e, SpanContext(1, number, is_remote=False), attributes=attributes, events=events)
    began = time.monotonic()
    stored = await store.add_otel_span(attempt.rollout_id, attempt.attempt_id, readable)
    return await _there(store, attempt, f"{number:016x}", stored, began)


async def recorder(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """A span that a framework's adapter writes, through a recorder."""
    keeps = Recorder(store.add_many_spans)
    a, b, c, d = await _made(draws, 4)
    began = time.monotonic()

    def record() -> LightweightSpan:
        with open_attempt(_open(attempt)):
            made = LightweightTracer(keeps.take).below(None, "recorded", {draws.text(8): a}, time.time_ns())
            made.set_attribute("b", b)
            made.add_event("e", {"c": c})
            made.record_exception(ValueError(d))
            made.end()
        return made

    made = await asyncio.to_thread(record)
    await keeps.flush()
    refused = keeps.refused(attempt.attempt_id)
    assert refused is None, f"the recorder lost a span: {refused}"
    return await _there(store, attempt, made.span_id, None, began)


async def emitters(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """What an agent emits, and what a runner notes of its result and its error."""
    a, b, c, d, e, f, g = await _made(draws, 7)
    began, opened = time.monotonic(), _open(attempt)

    def emit() -> None:
        with open_attempt(opened):
            emit_object(a)
            emit_message(b)
            emit_observation(role=c, content=d)
            emit_exception(ValueError(e))

    await asyncio.to_thread(emit)
    opened.notes.append(await result_span(opened, f, time.time()))
    opened.notes.append(await exception_span(opened, KeyError(g), "wrong"))
    assert len(opened.notes) == 6 and all(map(is_plain_span, opened.notes)), "a note is no span of plain data"
    stored = await store.add_many_spans(opened.notes)
    assert len(stored) == len(opened.notes), "a note was lost"
    taken = [await _there(store, attempt, note.span_id, note, began) for note in stored]
    return Taken(taken[0].seconds, max(one.bytes for one in taken))


async def refusals(store: LightningStore, attempt: Attempt, draws: Draws) -> Taken:
    """Where not every value can be kept: each is taken, or refused with one line."""
    given, earned = await _made(draws, 2)
    began = time.monotonic()
    calls: list[Callable[[Any], Awaitable[object]]] = [
        lambda odd: store.add_resources({"main": LLM(endpoint="e", model="m", sampling_parameters={"a": odd})}),
        lambda odd: store.enqueue_rollout(1, config=RolloutConfig(max_attempts=odd)),
        lambda odd: store.update_attempt(attempt.rollout_id, attempt.attempt_id, last_heartbeat_time=odd),
        lambda odd: store.query_spans(odd, limit=1),
        lambda odd: store.query_rollouts(status_in=odd, limit=1),
        lambda odd: store.add_metrics("run", [StepMetrics(step=1, values={"a": odd})]),
        lambda odd: store.add_run(Run(run_id=secrets.token_hex(8), name="n", config={"a": odd})),
        lambda odd: store.wait_for_rollouts(rollout_ids=odd, timeout=0.0),
    ]
    try:
        await draws.pick(calls)(given)
    except LeydenError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, f"a refusal of several lines: {error}"
    try:
        found = (await asyncio.to_thread(reward_attributes, earned))[semconv.REWARD_VALUE]
        assert type(found) is float and math.isfinite(found), f"the reward {found!r} was taken"
    except RewardError as error:
        assert "\n" not in str(error), f"a refusal of several lines: {error}"
    return Taken(time.monotonic() - began, 0)


WAYS: Mapping[Way, int] = {span: 12, document: 4, otel: 4, recorder: 4, emitters: 4, refusals: 4}
"""Each with how many times it is gone."""


async def _made(draws: Draws, count: int) -> list[Any]:
    """Draw values and make them, as an agent does on a thread of its own."""
    recipes = [draws.value() for _ in range(count)]
    return await asyncio.to_thread(lambda: [recipe.made() for recipe in recipes])


def _open(attempt: Attempt) -> OpenAttempt:
    return OpenAttempt(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        token="",
        gateway_url="http://127.0.0.1:9",
        trace_id="1" * 32,
    )


async def _there(store: LightningStore, attempt: Attempt, span_id: str, stored: Span | None, began: float) -> Taken:
    seconds = time.monotonic() - began
    found = await store.query_spans(attempt.rollout_id, attempt.attempt_id, span_id=span_id)
    assert found.total == 1, f"span {span_id} was lost"
    read = found.items[0]
    return Taken(seconds, await asyncio.to_thread(same, read if stored is None else stored, read, span_id))
