"""Evidence of a wire campaign with changes, which its checks must find."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from campaign.evidence import Evidence
from campaign.recorded import packed, sampling_of
from leyden.core.data import reasons, semconv
from leyden.core.data.span import Attribute, Span
from leyden.core.engine.base import EngineRecord


def is_drawn(span: Span) -> bool:
    return semconv.RESPONSE_IDS in span.attributes and len(packed(span, semconv.RESPONSE_IDS)) > 0


def is_whole(span: Span) -> bool:
    return is_drawn(span) and semconv.NOT_TRAINED not in span.attributes and semconv.ENGINE_FINISH in span.attributes


def is_trained(span: Span) -> bool:
    return is_whole(span) and sampling_of(span).temperature > 0 and not sampling_of(span).truncates


def was_cut(span: Span) -> bool:
    return is_drawn(span) and span.attributes.get(semconv.NOT_TRAINED) == reasons.DISCONNECTED


def was_refused(span: Span) -> bool:
    return span.attributes.get(semconv.NOT_TRAINED) == reasons.REFUSED


def edited(
    evidence: Evidence, edit: Callable[[Span], Sequence[Span]], fits: Callable[[Span], bool] = is_whole
) -> tuple[Evidence, Span]:
    """The evidence with what `edit` makes of the first span that fits, and that span."""
    number, span = next((n, span) for n, spans in evidence.spans.items() for span in spans if fits(span))
    spans = [new for old in evidence.spans[number] for new in (edit(old) if old is span else [old])]
    return replace(evidence, spans={**evidence.spans, number: spans}), span


def with_attributes(span: Span, **changes: Attribute | None) -> Span:
    """The span with attributes, named as in `semconv`, changed or (None) removed."""
    changed = {getattr(semconv, name): value for name, value in changes.items()}
    kept = {key: value for key, value in {**span.attributes, **changed}.items() if value is not None}
    return msgspec.structs.replace(span, attributes=kept)


def with_sampling(span: Span, **changes: Any) -> Span:
    """The span with a record of other sampling parameters."""
    sampling = msgspec.structs.replace(sampling_of(span), **changes)
    return msgspec.structs.replace(span, attributes=span.attributes | sampling.recorded())


def with_log(evidence: Evidence, span: Span, change: Callable[[EngineRecord], Sequence[EngineRecord]]) -> Evidence:
    call = span.attributes[semconv.CALL_ID]
    log = {
        policy: [new for old in records for new in (change(old) if old.request_id == call else [old])]
        for policy, records in evidence.log.items()
    }
    return replace(evidence, log=log)
