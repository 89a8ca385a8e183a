"""`HttpSpans`: the part of `HttpStore` that stores and reads spans at the server."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from leyden.core.data.page import Page
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.arguments import FilterLogic, SortOrder
from leyden.core.store.base import LightningStore
from leyden.core.store.common.argument_types import ArgumentChecks
from leyden.core.store.common.span_entry import encoded
from leyden.core.store.rpc import methods, numbered

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

P = ParamSpec("P")
T = TypeVar("T")

_NUMBERS = msgspec.msgpack.Decoder(list[int])
_encoded = msgspec.msgpack.encode
"""Encoded forms are compared, since NaN equals itself only there."""


class HttpSpans(ArgumentChecks, LightningStore):
    """Stores and reads spans at a server."""

    @abstractmethod
    async def _call(
        self, method: Callable[Concatenate[LightningStore, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Send a call of a method of the interface to the server, and return its result."""

    @abstractmethod
    async def _answer(self, name: str, call: bytes) -> tuple[bytes, bool]:
        """Send a call; return its answer, and whether it was sent again. Raises the error that the server returned."""

    async def add_span(self, span: Span) -> Span | None:
        """Store a span, which also counts as a heartbeat; return None when it is an exact duplicate."""
        return next(iter(await self._add("add_span", [span], lambda spans: spans[0])), None)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans of any attempts in one transaction; return the stored spans without duplicates."""
        return await self._add("add_many_spans", spans, lambda spans: spans)

    async def _add(self, name: str, spans: Sequence[Span], argument: Callable[[Sequence[Span]], Any]) -> list[Span]:
        """Store spans by the method `name`, whose argument `argument` makes from the spans.

        The server returns only the spans' numbers.
        """
        spans, call = await encoded(spans, lambda spans: methods()[name].encode_call(argument(spans)))
        body, was_sent_again = await self._answer(name, call)
        try:
            numbers = _NUMBERS.decode(body)
            if was_sent_again:
                numbers = [number or await self._own_number(span) for span, number in zip(spans, numbers, strict=True)]
            return numbered(spans, numbers)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreError(f"the store's answer to {name} cannot be read: {error}") from error

    async def _own_number(self, span: Span) -> int:
        """Return the number of a stored span if it equals `span`, so that this call has stored it; otherwise 0.

        The answer of the first request may be lost, and so may the server that had recorded it.
        """
        found = await self.query_spans(span.rollout_id, span.attempt_id, span_id=span.span_id, limit=1)
        number = found.items[0].sequence_id if found.items else 0
        same = number and _encoded(found.items[0]) == _encoded(msgspec.structs.replace(span, sequence_id=number))
        return number if same else 0

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK."""
        from leyden.core.store.sdk_spans import span_from_otel

        return await self.add_span(span_from_otel(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve and return the rollout's next span number; each rollout has one counter, from 1."""
        return await self._call(LightningStore.get_next_span_sequence_id, rollout_id, attempt_id)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Reserve and return a span number for each pair, in order."""
        return await self._call(LightningStore.get_many_span_sequence_ids, rollout_attempt_ids)

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> Page[Span]:
        """Return spans of a rollout, of one of its attempts, or of its `"latest"` attempt."""
        return await self._call(
            LightningStore.query_spans,
            rollout_id,
            attempt_id,
            trace_id=trace_id,
            trace_id_contains=trace_id_contains,
            span_id=span_id,
            span_id_contains=span_id_contains,
            parent_id=parent_id,
            parent_id_contains=parent_id_contains,
            name=name,
            name_contains=name_contains,
            filter_logic=filter_logic,
            limit=limit,
            offset=offset,
            sort_by=sort_by,
            sort_order=sort_order,
        )

    async def drop_spans(self, rollout_id: str) -> int:
        """Remove the spans of a finished rollout and return how many there were; span numbers are not reused."""
        return await self._call(LightningStore.drop_spans, rollout_id)
