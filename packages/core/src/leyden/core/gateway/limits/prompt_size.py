"""What cannot fit into a model's context, judged by lengths alone, before anything of it is parsed or encoded."""

from leyden.core.gateway.codec import Codec, Message
from leyden.core.gateway.codecs.messages import plain_text
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.refusal import Refusal

ESCAPED = 6
"""Bytes that JSON may need for one of text: `\\u0041`."""
BESIDE = 1 << 20
"""Bytes of a request that the policy need not read, such as metadata and another model's reasoning."""
ELEMENTS, ELEMENTS_PER_TOKEN = 20_000, 4
"""A request may have so many JSON values, and so many more for each token of the context."""
COUNTED = 64 << 10
"""Bytes of a request whose values are not counted: they cannot be too many."""
_MARKS = (b",", b"[", b"{")
_SLICE = 1 << 20


def least_tokens(size: int, codec: Codec) -> int:
    """Fewest tokens that `size` bytes of text can be; 0 where that is not known."""
    longest = codec.longest_token
    return 0 if longest is None else -(-size // longest)


def least_of_body(size: int, codec: Codec) -> int:
    """Fewest tokens that a request of `size` bytes can mean."""
    return least_tokens(max(0, size - BESIDE) // ESCAPED, codec)


def least_of_request(request: ModelRequest, codec: Codec) -> int:
    """Fewest tokens of a request's prompt: no message or tool is rendered as less than one."""
    text = least_tokens(sum(map(_characters, request.messages)), codec)
    return max(text, len(request.messages), len(request.tools))


def check_elements(body: bytes, room: int) -> None:
    """Refuse a body that holds more JSON values than a context of `room` tokens has any use for.

    They are not parsed but counted by what stands before them, also inside of text.
    """
    if len(body) <= COUNTED:
        return
    most = ELEMENTS + ELEMENTS_PER_TOKEN * room
    found = 0
    for start in range(0, len(body), _SLICE):
        found += sum(body.count(mark, start, start + _SLICE) for mark in _MARKS)
        if found > most:
            message = f"The request body holds more than {most} JSON values."
            raise Refusal(413, message, code="request_too_large")


def _characters(message: Message) -> int:
    return len(plain_text(message.get("content")))
