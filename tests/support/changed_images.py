"""Evidence of a wire campaign in which images are swapped, dropped, moved or recorded wrongly."""

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
from changed_evidence import edited, is_trained, with_attributes

from campaign.evidence import Evidence
from campaign.recorded import is_image, message_images, named_images, packed, sampling_of, text
from leyden.core.data import semconv
from leyden.core.data.span import Span


def with_one_image(evidence: Evidence) -> tuple[Span, Span]:
    """Two calls of one rollout that are trained, each with one image, which differ; any token may follow it."""
    for spans in evidence.spans.values():
        free = [span for span in spans if is_trained(span) and not sampling_of(span).grammar]
        found = [span for span in free if len(named_images(span)) == 1]
        if other := next((span for span in found if named_images(span)[0][0] != named_images(found[0])[0][0]), None):
            return found[0], other
    raise AssertionError("the campaign has no such calls")


def with_image(span: Span, digest: str) -> Span:
    """The span with another image in the place of its only one."""
    _, start, tokens = named_images(span)[0]
    return with_attributes(span, PROMPT_IMAGES=json.dumps([[digest, start, tokens]]))


def images_swapped(evidence: Evidence) -> Evidence:
    first, second = with_one_image(evidence)
    a, b = named_images(first)[0][0], named_images(second)[0][0]
    changed, _ = edited(evidence, lambda span: [with_image(span, b)], lambda span: span is first)
    return edited(changed, lambda span: [with_image(span, a)], lambda span: span is second)[0]


def image_of_another_rollout(evidence: Evidence) -> Evidence:
    first, _ = with_one_image(evidence)
    others = [one for spans in evidence.spans.values() for one in spans if is_image(one)]
    (other, *_) = [text(one, semconv.IMAGE_DIGEST) for one in others if one.rollout_id != first.rollout_id]
    return edited(evidence, lambda span: [with_image(span, other)], lambda span: span is first)[0]


def image_in_another_place(evidence: Evidence) -> Evidence:
    first, _ = with_one_image(evidence)
    digest, start, tokens = named_images(first)[0]
    moved = with_attributes(first, PROMPT_IMAGES=json.dumps([[digest, start - 1, tokens]]))
    return edited(evidence, lambda _: [moved], lambda span: span is first)[0]


def is_file_of(call: Span) -> Callable[[Span], bool]:
    """Whether a span has the file of the call's only image."""
    digest = named_images(call)[0][0]
    return lambda span: (
        is_image(span)
        and (span.attempt_id, text(span, semconv.IMAGE_DIGEST))
        == (
            call.attempt_id,
            digest,
        )
    )


def image_dropped(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda _: [], is_file_of(with_one_image(evidence)[0]))[0]


def image_files_swapped(evidence: Evidence) -> Evidence:
    first, second = (is_file_of(call) for call in with_one_image(evidence))
    a, b = (packed(edited(evidence, lambda _: [], fits)[1], semconv.IMAGE_DATA) for fits in (first, second))
    changed, _ = edited(evidence, lambda span: [with_attributes(span, IMAGE_DATA=b)], first)
    return edited(changed, lambda span: [with_attributes(span, IMAGE_DATA=a)], second)[0]


def image_recorded_again(evidence: Evidence) -> Evidence:
    def again(span: Span) -> list[Span]:
        return [span, msgspec.structs.replace(span, span_id="0" * 16, start_time=span.start_time + 3600)]

    return edited(evidence, again, is_file_of(with_one_image(evidence)[0]))[0]


def image_that_no_call_has(evidence: Evidence) -> Evidence:
    calls = {id(span) for spans in evidence.spans.values() for span in spans if named_images(span)}
    rollout = with_one_image(evidence)[0].rollout_id
    spans = {
        n: [s for s in spans if s.rollout_id != rollout or id(s) not in calls] for n, spans in evidence.spans.items()
    }
    return replace(evidence, spans=spans)


def image_in_the_recorded_messages(evidence: Evidence) -> Evidence:
    def written(span: Span) -> list[Span]:
        (url,) = [url for _, url in message_images(span)]
        messages = text(span, semconv.INPUT_MESSAGES).replace(url, "data:image/png;base64," + "A" * 200)
        return [with_attributes(span, INPUT_MESSAGES=messages)]

    first, _ = with_one_image(evidence)
    return edited(evidence, written, lambda span: span is first)[0]
