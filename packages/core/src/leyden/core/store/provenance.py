"""Provenance of call records: removes records of model calls from spans that no gateway wrote.

Training trusts these records. A gateway adds its spans directly to its own store object. All other writers pass their
spans through `without_call_records` first: a process's recorder, a runner's notes, OTLP endpoints, and captures in
production. So does the server of a store for every client that it does not trust; in a run, it trusts none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink
from leyden.core.store.common.span_entry import entered

Part = TypeVar("Part", SpanEvent, SpanLink)

_AT_ONCE = 128
"""Number of spans that are processed before other tasks of the event loop run."""


async def without_call_records(given: Sequence[Any]) -> list[Span]:
    """Return spans as plain data (see `entered`), without the attributes in `semconv.CALL_RECORD`.

    A span that had any of them is kept, and `semconv.FORGED` names them. Raises UsageError for a span without an
    identity.
    """
    many = cast("list[Any]", given) if type(given) is list and len(cast("list[Any]", given)) > _AT_ONCE else []
    if not many:
        # Only after conversion to plain data: a key of another class may compare unlike a name, and be stored as that
        # name.
        return [_without(span) for span in await entered(cast("Sequence[Any]", given))]
    kept: list[Span] = []
    for first in range(0, len(many), _AT_ONCE):
        kept += await without_call_records(many[first : first + _AT_ONCE])
        await asyncio.sleep(0)  # lets other tasks of the event loop run
    return kept


def _without(span: Span) -> Span:
    parts = [span.attributes, span.resource, *(part.attributes for part in (*span.events, *span.links))]
    if all(map(semconv.CALL_RECORD.isdisjoint, parts)):
        return span
    before = span.attributes.get(semconv.FORGED)
    known = [str(name) for name in before] if isinstance(before, list) else []
    names = sorted({*known, *(name for part in parts for name in semconv.CALL_RECORD.intersection(part))})
    kept = {name: value for name, value in _cleaned(span.attributes).items() if name != semconv.FORGED}
    return replace(
        span,
        # first, since the last attributes of a too large span may be left out
        attributes={semconv.FORGED: names, **kept},
        resource=_cleaned(span.resource),
        events=[_part(event) for event in span.events],
        links=[_part(link) for link in span.links],
    )


def _part(part: Part) -> Part:
    return replace(part, attributes=_cleaned(part.attributes))


def _cleaned(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if name not in semconv.CALL_RECORD}
