"""Retry cache: stores the records of responses, and sends the recorded response again for a retried request.

A retry is the same request (attempt, parent span, body) sent again because its response did not arrive. It gets the
response that was already generated and recorded, not a second one. An agent may send the same request twice on purpose,
so an equal request alone is not a retry. It counts as a retry in two cases: the earlier response is recorded as not
delivered to its client, or the client's retry header marks the request as a retry.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, cast

import msgspec
from starlette.types import Send

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.reasons import FROZEN
from leyden.core.data.span import Span
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.images import ImageSpans
from leyden.core.gateway.calls.prompts import recorded_prompts
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.calls.span_writer import SpanWriter
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.gateway.dialect import Exchange, FinishedChoice
from leyden.core.gateway.http.asgi import ClientWatch
from leyden.core.gateway.http.metrics import GatewayMetrics
from leyden.core.gateway.shared.requests import SharedRequests
from leyden.core.store.base import LightningStore
from leyden.core.store.outage import through_outage

REMEMBERED = 4096
"""Number of undelivered responses that are remembered; the oldest is dropped first."""


class RetryCache:
    """Retry cache of one gateway: reads spans from `store`, writes them with `span_writer`, counts in `metrics`."""

    def __init__(self, store: LightningStore, span_writer: SpanWriter, metrics: GatewayMetrics) -> None:
        self._store, self._span_writer, self._metrics = store, span_writer, metrics
        self.shared: SharedRequests | None = None
        """Requests of the other workers of the gateway, which a retry may repeat; None for a single process."""
        self._images = ImageSpans()
        self._undelivered: OrderedDict[str, None] = OrderedDict()
        self._in_progress: dict[str, list[_RequestInProgress]] = {}

    async def keep(self, *records: CallRecord, waits: bool = False) -> bool:
        """Store the spans of one response together; return whether that succeeded. A failure is logged.

        Images of its prompt that the attempt has not recorded yet are stored with it. With `waits`, wait for the end of
        the store's outage.
        """
        images = self._images.missing(records)
        kept = await self._span_writer.keep([*images, *(record.span() for record in records)], waits=waits)
        if kept:
            self._images.remember(images)
        self._metrics.recorded(len(records), kept=kept)
        first = records[0]
        if first.prompt_ids is not None and first.policy is not None:
            prompts = {record.prompt_index: len(record.prompt_ids or ()) for record in records}
            sampled = sum(len(record.ids) for record in records)
            self._metrics.tokens(first.policy, sum(prompts.values()), sampled)
        return kept

    async def keep_span(self, span: Span) -> bool:
        """Store a span that belongs to no response; return whether that succeeded. A failure is logged."""
        kept = await self._span_writer.keep([span])
        self._metrics.recorded(1, kept=kept)
        return kept

    async def spans(self, origin: Origin, *, name: str | None = None) -> list[Span]:
        """Return all spans of an attempt, or those of one name, including spans that were still buffered."""
        await self._span_writer.flush()
        ids = origin.rollout.rollout_id, origin.attempt_id
        return (await through_outage(lambda: self._store.query_spans(*ids, name=name))).items

    def mark_undelivered(self, fingerprint: str) -> None:
        """Remember that the response to this request was recorded and did not reach its client."""
        self._undelivered[fingerprint] = None
        if self.shared is not None:
            self.shared.mark_undelivered(fingerprint)
        if len(self._undelivered) > REMEMBERED:
            self._take_undelivered(next(iter(self._undelivered)))

    def _take_undelivered(self, fingerprint: str) -> bool:
        """Return whether the response to this request did not reach its client, and forget that."""
        own = fingerprint in self._undelivered
        self._undelivered.pop(fingerprint, None)
        # Another worker may have sent the response again, so the shared mark decides.
        return own if self.shared is None else self.shared.take_undelivered(fingerprint)

    @contextmanager
    def in_progress(self, fingerprint: str, watch: ClientWatch, *, is_retry: bool) -> Generator[None]:
        """Mark a request as in progress while the block runs; a retry of it waits until the block ends."""
        request = _RequestInProgress(watch, is_retry)
        self._in_progress.setdefault(fingerprint, []).append(request)
        shared = nullcontext() if self.shared is None else self.shared.in_progress(fingerprint)
        try:
            with shared:
                yield
        finally:
            request.ended.set()
            self._in_progress[fingerprint].remove(request)
            if not self._in_progress[fingerprint]:
                del self._in_progress[fingerprint]

    async def find_answer(self, origin: Origin, fingerprint: str) -> list[Span]:
        """Return the spans of the response that this retry needs, sorted by choice; empty for a new call.

        If that response is still in progress, waits until it has ended and is recorded. A request in progress counts
        only if its client has disconnected, or if the new request is marked as a retry. If the last response to such a
        request failed, the retry is a new call, whatever equal requests before it got.

        On a busy machine, a retry may be read before the request that it repeats. That request waits here for its
        retry: its client has disconnected, which ends the wait.
        """
        for request in list(self._in_progress.get(fingerprint, ())):
            if origin.is_retry or request.is_retry or request.watch.gone:
                await request.ended.wait()
        if origin.is_retry and self.shared is not None:
            await self.shared.wait_for_others(fingerprint)
        undelivered = self._take_undelivered(fingerprint)
        if not origin.is_retry and not undelivered:
            return []
        found: dict[str, list[Span]] = {}
        for span in await self.spans(origin):
            if span.attributes.get(semconv.FINGERPRINT) == fingerprint:
                found.setdefault(str(span.attributes[semconv.RESPONSE_ID]), []).append(span)
        last = list(found.values())[-1:]
        return sorted(last[0], key=_choice_index) if last and all(map(_is_complete, last[0])) else []


def fingerprint(origin: Origin, body: bytes) -> str:
    """Return the hash (32 hexadecimal digits) of attempt, parent span and body; a retry has the same hash."""
    digest = blake2b(f"{origin.attempt_id}/{origin.parent_id}/".encode(), digest_size=16)
    digest.update(body)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _RequestInProgress:
    """A request in progress."""

    watch: ClientWatch
    is_retry: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)


def _is_complete(span: Span) -> bool:
    """Whether the whole response was generated; a partial response must not be replayed as a complete one."""
    complete = span.attributes.get(semconv.NOT_TRAINED) in (None, FROZEN)
    return complete and span.status.code == "ok" and semconv.ENGINE_FINISH in span.attributes


def _choice_index(span: Span) -> int:
    return int(str(span.attributes[semconv.CHOICE_INDEX]))


async def replay(policy: ServedPolicy, exchange: Exchange, spans: Sequence[Span], send: Send) -> None:
    """Send the recorded response in the format that `exchange` requests; `spans` has one span per choice, in order."""
    response_id = str(spans[0].attributes[semconv.RESPONSE_ID])
    prompts = recorded_prompts(policy.codec, exchange.request, spans)
    reply = exchange.reply(send, response_id, int(spans[0].start_time), prompts)
    choices: list[FinishedChoice] = []
    for index, span in enumerate(spans):
        prompt_ids = prompts[index // exchange.request.choices].ids
        reader = AnswerReader(policy.codec, exchange.request, str(span.attributes[semconv.CALL_ID]), prompt_ids)
        ids, logprobs, top = _sampled_tokens(span)
        parts = [*reader.push(ids, logprobs, top), *reader.finish()]
        if reply.live:
            await reply.show(index, parts, reader.tokens())
        finish = cast("Literal['stop', 'length']", span.attributes.get(semconv.ENGINE_FINISH, "stop"))
        choices.append(FinishedChoice(reader=reader, engine_finish=finish, prompt_ids=prompt_ids, response_ids=ids))
    await reply.end(choices, sum(len(prompt.ids) for prompt in prompts))


def _sampled_tokens(span: Span) -> tuple[list[int], list[float], list[list[tuple[int, float]]] | None]:
    """Return the sampled token ids, their raw log-probabilities, and the most likely tokens at each position."""
    attributes = span.attributes
    ids = list(unpack_ids(cast("bytes", attributes[semconv.RESPONSE_IDS])))
    logprobs = list(unpack_log_probs(cast("bytes", attributes[semconv.RESPONSE_LOGPROBS])))
    top = attributes.get(semconv.TOP_LOGPROBS)
    if top is None:
        return ids, logprobs, None
    return ids, logprobs, msgspec.json.decode(str(top), type=list[list[tuple[int, float]]])
