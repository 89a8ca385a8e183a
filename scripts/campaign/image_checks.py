"""Whether the images of every prompt are those that its calls sent, in the record, in the store and in training."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from campaign.recorded import Recorded, is_image, message_images, named_images, packed, text
from leyden.core.data import semconv
from leyden.core.data.encoding.images import digest_of
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.span import Span

LONGEST_URL = 100
"""Characters of a recorded URL, at most: no file fits into them."""


def wrong_images(recorded: Recorded) -> Iterator[str]:
    """Every prompt has the images of its own calls, in order; each file is recorded, once in each attempt."""
    for span in recorded.encoded:
        yield from (f"{text(span, semconv.CALL_ID)}: {wrong}" for wrong in _wrong_in_call(recorded, span))
    for span in recorded.calls:
        if any(len(url) > LONGEST_URL for url in _urls(span)):
            yield f"{text(span, semconv.CALL_ID)}: its messages are recorded with the file of an image"
    for number, spans in recorded.evidence.spans.items():
        yield from (f"rollout {number}: {wrong}" for wrong in _wrong_files(recorded, spans))
    sent = {span.span_id: recorded.pictures(span) for span in recorded.encoded}
    for trajectory in recorded.trajectories.values():
        for transition in trajectory.transitions:
            if [digest_of(image.data) for image in transition.images] != sent[transition.span_id]:
                yield f"{transition.call_id}: trained with other images than it was sent with"


def _wrong_in_call(recorded: Recorded, span: Span) -> Iterator[str]:
    """Compare the images that a record names with those that were sent, its placeholders and its messages."""
    named, sent = named_images(span), recorded.pictures(span)
    digests = [digest for digest, _, _ in named]
    if digests != sent:
        yield f"sent with the images {_short(sent)}, recorded with {_short(digests)}"
    if [n for _, start, tokens in named for n in range(start, start + tokens)] != _placeholders(recorded, span):
        yield "the recorded places of its images are not those of the placeholders in its prompt"
    if semconv.INPUT_MESSAGES in span.attributes and _urls(span) != [f"sha256:{digest}" for digest in digests]:
        yield "its messages name other images than its prompt"
    missing = [digest for digest in digests if (span.attempt_id, digest) not in recorded.files]
    yield from (f"the file of its image {_short([digest])} is not recorded" for digest in missing)


def _placeholders(recorded: Recorded, span: Span) -> list[int]:
    """Return the places of the placeholders in a prompt."""
    ids = unpack_ids(packed(span, semconv.PROMPT_IDS))
    return [place for place, token in enumerate(ids) if token == recorded.image_token]


def _wrong_files(recorded: Recorded, spans: Sequence[Span]) -> Iterator[str]:
    """Check the files that a rollout recorded: unchanged, all needed, and each once."""
    calls = [span for span in spans if semconv.PROMPT_IMAGES in span.attributes]
    needed = {digest for call in calls for digest, _, _ in named_images(call)}
    copies: defaultdict[str, list[Span]] = defaultdict(list)
    for span in filter(is_image, spans):
        copies[text(span, semconv.IMAGE_DIGEST)].append(span)
    for digest, found in copies.items():
        name = _short([digest])
        if any(digest_of(packed(span, semconv.IMAGE_DATA)) != digest for span in found):
            yield f"another file is recorded under the name of image {name}"
        if digest not in needed:
            yield f"image {name} is recorded, and no call has it"
        if any(not _at_once(found[0], other, calls) for other in found[1:]):
            yield f"image {name} is recorded {len(found)} times"


def _at_once(first: Span, other: Span, calls: Sequence[Span]) -> bool:
    """Whether the calls with which two copies of a file were recorded were open at the same time."""
    ends = [call.end_time for call in calls if (call.parent_id, call.start_time) == (first.parent_id, first.start_time)]
    return any(end is not None and other.start_time < end for end in ends)


def _urls(span: Span) -> list[str]:
    return [url for _, url in message_images(span)]


def _short(digests: Sequence[str]) -> str:
    return ", ".join(digest[:8] for digest in digests) or "none"
