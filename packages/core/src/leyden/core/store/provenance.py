"""Removes records of model calls from spans that no gateway wrote: learning trusts these records.

A gateway adds its spans to its own store object. Whatever agents, their workers, commands and applications write
through passes its spans through `without_call_records` first: a process's recorder, a runner's notes, the server of a
store for everyone it does not trust (in a run: for everyone), OTLP, and captures in production.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink
from leyden.core.store.span_entry import entered

Part = TypeVar("Part", SpanEvent, SpanLink)


async def without_call_records(given: Sequence[Any]) -> list[Span]:
    """Return spans, as `entered` does, without the attributes in `semconv.CALL_RECORD`.

    A span that had any is kept, and `semconv.FORGED` names them. Raises UsageError for a span without an identity.
    """
    # Only once they are plain data: keys of other classes may look like one name and be stored as another.
    return [_without(span) for span in await entered(given)]


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
