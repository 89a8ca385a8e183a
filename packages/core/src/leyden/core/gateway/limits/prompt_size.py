"""Prompt size check: finds requests that cannot fit into a model's context, before they are parsed or encoded.

It uses only the lengths of texts and lists, so it computes lower bounds of the number of tokens.
"""

from leyden.core.gateway.codec import Codec, Message
from leyden.core.gateway.codecs.messages import plain_text
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.refusal import Refusal

ESCAPED_BYTES = 6
"""Most bytes that JSON needs for one byte of text, as in `\\u0041`."""
NON_PROMPT_BYTES = 1 << 20
"""Bytes of a request that need not be part of the prompt, such as metadata and another model's reasoning."""
ELEMENTS, ELEMENTS_PER_TOKEN = 20_000, 4
"""A request may have `ELEMENTS` JSON values, plus `ELEMENTS_PER_TOKEN` for each token of the context."""
MAX_UNCHECKED_BYTES = 64 << 10
"""Largest request in bytes whose JSON values are not counted, because they cannot be too many."""
_MARKS = (b",", b"[", b"{")
_IMAGE_MARKS = (b'"image_url"', b'"input_image"', b'"image"')
_SLICE = 1 << 20


def least_tokens(size: int, codec: Codec) -> int:
    """Return the fewest tokens that can encode `size` bytes of text; 0 if the codec has no longest token."""
    longest = codec.longest_token
    return 0 if longest is None else -(-size // longest)


def least_of_body(size: int, codec: Codec) -> int:
    """Return the fewest prompt tokens of a request body of `size` bytes."""
    return least_tokens(max(0, size - NON_PROMPT_BYTES) // ESCAPED_BYTES, codec)


def least_of_request(request: ModelRequest, codec: Codec) -> int:
    """Return the fewest prompt tokens of a parsed request; each message and each tool counts as at least one token."""
    text = least_tokens(sum(map(_characters, request.messages)), codec)
    return max(text, len(request.messages), len(request.tools))


def may_have_images(body: bytes) -> bool:
    """Return whether a request may have image files, which have far fewer tokens than a text of their length."""
    return any(mark in body for mark in _IMAGE_MARKS)


def check_elements(body: bytes, room: int) -> None:
    """Raise Refusal with status 413 for a body with more JSON values than a context of `room` tokens can use.

    The body is not parsed: the check counts the characters `,`, `[` and `{`, also those inside strings.
    """
    if len(body) <= MAX_UNCHECKED_BYTES:
        return
    max_elements = ELEMENTS + ELEMENTS_PER_TOKEN * room
    found = 0
    for start in range(0, len(body), _SLICE):
        found += sum(body.count(mark, start, start + _SLICE) for mark in _MARKS)
        if found > max_elements:
            message = f"The request body holds more than {max_elements} JSON values."
            raise Refusal(413, message, code="request_too_large")


def _characters(message: Message) -> int:
    return len(plain_text(message.get("content")))
