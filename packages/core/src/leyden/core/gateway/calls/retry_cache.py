"""`Ledger`: keeps the records of answers, and finds those that a retry asks for again. Knows nothing of HTTP.

A retry is the same request (attempt, parent, body) made again because its answer did not arrive: it gets the answer
that was drawn and recorded for it, rather than a second one. That the same request merely comes twice proves nothing,
an agent may ask twice; the earlier answer must be known not to have reached its client, or the client must say that it
tries again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from leyden.core.data import semconv
from leyden.core.data.reasons import FROZEN
from leyden.core.data.span import Span
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.span_writer import Keeper
from leyden.core.gateway.http.asgi import ClientWatch
from leyden.core.gateway.http.metrics import GatewayMetrics
from leyden.core.store.base import LightningStore

REMEMBERED = 4096
"""Undelivered answers that are kept in mind; the oldest is forgotten first."""


class Ledger:
    """Records in `store`, written through `keeper` and counted in `metrics`."""

    def __init__(self, store: LightningStore, keeper: Keeper, metrics: GatewayMetrics) -> None:
        self._store, self._keeper, self._metrics = store, keeper, metrics
        self._undelivered: OrderedDict[str, None] = OrderedDict()
        self._answering: dict[str, list[_Answering]] = {}

    async def keep(self, *records: CallRecord) -> bool:
        """Store the spans of one answer, together, and return whether that worked; a failure goes to the log."""
        kept = await self._keeper.keep([record.span() for record in records])
        self._metrics.recorded(len(records), kept=kept)
        first = records[0]
        if first.prompt_ids is not None and first.policy is not None:
            drawn = sum(len(record.ids) for record in records)
            self._metrics.tokens(first.policy, len(first.prompt_ids), drawn)
        return kept

    async def note(self, span: Span) -> bool:
        """Store a span that is no answer's, and return whether that worked; a failure goes to the log."""
        kept = await self._keeper.keep([span])
        self._metrics.recorded(1, kept=kept)
        return kept

    async def spans(self, origin: Origin) -> list[Span]:
        """Return all spans of an attempt, those just kept included."""
        await self._keeper.flush()
        return (await self._store.query_spans(origin.rollout.rollout_id, origin.attempt_id)).items

    def undelivered(self, fingerprint: str) -> None:
        """Remember that the answer to this request was recorded and did not reach its client."""
        self._undelivered[fingerprint] = None
        if len(self._undelivered) > REMEMBERED:
            self._undelivered.popitem(last=False)

    @contextmanager
    def answering(self, fingerprint: str, watch: ClientWatch) -> Generator[None]:
        """Answer a request inside the block; a retry of it waits until the block ends."""
        answering = _Answering(watch)
        self._answering.setdefault(fingerprint, []).append(answering)
        try:
            yield
        finally:
            answering.ended.set()
            self._answering[fingerprint].remove(answering)
            if not self._answering[fingerprint]:
                del self._answering[fingerprint]

    async def earlier(self, origin: Origin, fingerprint: str) -> list[Span]:
        """Return the records of the answer that this request asks for again, by choice; empty when it is a new call.

        Where that answer is still being drawn or recorded, for a client that has left, it is waited for.
        """
        for answering in list(self._answering.get(fingerprint, ())):
            if origin.is_retry or answering.watch.gone:
                await answering.ended.wait()
        if not origin.is_retry and fingerprint not in self._undelivered:
            return []
        self._undelivered.pop(fingerprint, None)
        found: dict[str, list[Span]] = {}
        for span in await self.spans(origin):
            if span.attributes.get(semconv.FINGERPRINT) == fingerprint:
                found.setdefault(str(span.attributes[semconv.RESPONSE_ID]), []).append(span)
        whole = [spans for spans in found.values() if all(map(_is_whole, spans))]
        return sorted(whole[-1], key=_choice) if whole else []


def fingerprint(origin: Origin, body: bytes) -> str:
    """Return what a request and a retry of it have in common."""
    digest = blake2b(f"{origin.attempt_id}/{origin.parent_id}/".encode(), digest_size=16)
    digest.update(body)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Answering:
    """A request that is being answered."""

    watch: ClientWatch
    ended: asyncio.Event = field(default_factory=asyncio.Event)


def _is_whole(span: Span) -> bool:
    """Whether all of the answer was drawn: a part of it must not be given to anybody as the whole."""
    whole = span.attributes.get(semconv.NOT_TRAINED) in (None, FROZEN)
    return whole and span.status.code == "ok" and semconv.ENGINE_FINISH in span.attributes


def _choice(span: Span) -> int:
    return int(str(span.attributes[semconv.CHOICE_INDEX]))
