"""Removes records of model calls from spans that no gateway wrote: learning trusts these records.

A gateway adds its spans to its own store object. Whatever agents, their workers, commands and applications write
through passes its spans through `without_call_records` first: a process's recorder, a runner's notes, the server of a
store for everyone it does not trust (in a run: for everyone), OTLP, and captures in production.
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
"""Spans."""


async def without_call_records(given: Sequence[Any]) -> list[Span]:
    """Return spans, as `entered` does, without the attributes in `semconv.CALL_RECORD`.

    A span that had any is kept, and `semconv.FORGED` names them. Raises UsageError for a span without an identity.
    """
    many = cast("list[Any]", given) if type(given) is list and len(cast("list[Any]", given)) > _AT_ONCE else []
    if not many:
        # Only once they are plain data: keys of other classes may look like one name and be stored as another.
        return [_without(span) for span in await entered(cast("Sequence[Any]", given))]
    kept: list[Span] = []
    for first in range(0, len(many), _AT_ONCE):
        kept += await without_call_records(many[first : first + _AT_ONCE])
        await asyncio.sleep(0)  # for what else the event loop has to do
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
        attributes={semconv.FORGED: names, **kept},  # first: of a span that is too large, the last may be left out
        resource=_cleaned(span.resource),
        events=[_part(event) for event in span.events],
        links=[_part(link) for link in span.links],
    )


def _part(part: Part) -> Part:
    return replace(part, attributes=_cleaned(part.attributes))


def _cleaned(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if name not in semconv.CALL_RECORD}
