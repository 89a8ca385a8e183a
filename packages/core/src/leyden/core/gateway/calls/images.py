"""Images of a call: reads those of a request, and makes the spans that record them once for each attempt.

An image is read from its data URL; no other URL is fetched. The record of a call names its images by their digests, and
the spans hold their files, so that training reads the same pixels.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from leyden.core.data import semconv
from leyden.core.data.encoding.images import PromptImage, digest_of
from leyden.core.data.span import Attributes, Span
from leyden.core.errors import ImageError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codec import Codec, ImageFile
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.message_images import shortened_url, with_urls
from leyden.core.gateway.model_request import ModelRequest, RecordedRequest
from leyden.core.gateway.refusal import Refusal, invalid
from leyden.core.images.files import read_data_url

if TYPE_CHECKING:
    from leyden.core.gateway.calls.record import CallRecord

NAME = "image"
"""Name of the span that holds an image."""
REMEMBERED = 4096
"""Number of recorded images that are remembered; an image that is not remembered is recorded again."""


@dataclass(frozen=True, slots=True)
class RequestImages:
    """The images of a request, in order, and the number of characters of their URLs."""

    files: tuple[ImageFile, ...] = ()
    characters: int = 0


NO_IMAGES = RequestImages()


async def read_images(
    policy: ServedPolicy, dialect: Dialect, urls: Sequence[str], work: RequestWork, room: int
) -> RequestImages:
    """Return the images at the URLs of a request; a thread reads them.

    Raises Refusal if the policy takes no images, if one cannot be read, or if they exceed `room` tokens.
    """
    if not policy.takes_images:
        raise Refusal(
            400,
            "This policy takes no images. Use a vision-language model as the policy, or describe the image in text.",
            param=dialect.prompt_field,
            code="unsupported_parameter",
        )
    if len(urls) >= room:  # each has at least one token
        raise dialect.too_long(room, len(urls))
    files: list[ImageFile] = []
    for number, url in enumerate(urls, 1):
        files.append(await work.run_on_thread(lambda number=number, url=url: _read(policy.codec, dialect, number, url)))
        tokens = sum(file.tokens for file in files)
        if tokens >= room:
            raise dialect.too_long(room, tokens)
    return RequestImages(tuple(files), sum(map(len, urls)))


def without_data(request: ModelRequest, urls: Sequence[str]) -> RecordedRequest:
    """Return the text of a request for its record, in which the data of its images, at `urls`, is cut off."""
    return _recorded(request, [shortened_url(url) for url in urls])


def with_digests(request: ModelRequest, images: Sequence[PromptImage]) -> RecordedRequest:
    """Return the text of a request for its record, in which images are named by their digests."""
    return _recorded(request, [f"sha256:{image.digest}" for image in images])


class ImageSpans:
    """Makes the spans of images that are not recorded yet; each attempt has its own."""

    def __init__(self) -> None:
        self._recorded: OrderedDict[tuple[str, str], None] = OrderedDict()

    def missing(self, records: "Sequence[CallRecord]") -> list[Span]:
        """Return a span for each image of `records` that was not recorded for its attempt."""
        wanted = {
            (record.origin.attempt_id, image.digest): (record, image) for record in records for image in record.images
        }
        return [_span(record, image) for key, (record, image) in wanted.items() if key not in self._recorded]

    def remember(self, spans: Sequence[Span]) -> None:
        """Remember that the images in `spans` are recorded."""
        for span in spans:
            key = (span.attempt_id, str(span.attributes[semconv.IMAGE_DIGEST]))
            self._recorded[key] = None
            self._recorded.move_to_end(key)
        while len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)


def _recorded(request: ModelRequest, urls: Sequence[str]) -> RecordedRequest:
    if not urls:
        return request.as_sent
    messages = msgspec.json.encode(with_urls(request.messages, urls)).decode()
    return msgspec.structs.replace(request.as_sent, messages=messages)


def _read(codec: Codec, dialect: Dialect, number: int, url: str) -> ImageFile:
    try:
        data = read_data_url(url)
        digest = digest_of(data)
        return ImageFile(digest=digest, data=data, tokens=codec.image_tokens(digest, data))
    except ImageError as error:
        raise invalid(f"Image {number} of the request cannot be read: {error}.", dialect.prompt_field) from error


def _span(record: "CallRecord", image: PromptImage) -> Span:
    attributes: Attributes = {semconv.IMAGE_DIGEST: image.digest, semconv.IMAGE_DATA: image.data}
    return record.origin.span(NAME, attributes, record.started, record.started)
