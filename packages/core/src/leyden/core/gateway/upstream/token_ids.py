"""Token ids of an upstream: requests them, and removes them from the response to the agent.

The names are those of vLLM: a chat completion with `return_token_ids` has `prompt_token_ids`, and `token_ids` in each
choice. A completion has both in each choice. Without the request field, vLLM sends both as null. The filter therefore
also replaces them with null.
"""

from dataclasses import dataclass

import msgspec

from leyden.core.gateway.model_request import UNREADABLE

PROMPT_IDS, RESPONSE_IDS = "prompt_token_ids", "token_ids"


@dataclass(frozen=True, slots=True)
class TokenIdRequest:
    """Paths and request field that request token ids."""

    paths: frozenset[str]
    field: str


TOKEN_ID_REQUEST = TokenIdRequest(frozenset({"/chat/completions", "/completions"}), "return_token_ids")

_Fields = dict[str, msgspec.Raw]
_NULL = msgspec.Raw(b"null")
_decode = msgspec.json.Decoder(_Fields).decode
_decode_choices = msgspec.json.Decoder(list[_Fields]).decode


class TokenIdFilter:
    """Filter that removes token ids from one response; it returns each line of a stream as soon as it is complete."""

    def __init__(self) -> None:
        self._part = b""

    def whole(self, body: bytes) -> bytes:
        """Return a complete response without token ids."""
        return without_ids(body)

    def push(self, data: bytes) -> bytes:
        """Add data of a stream; return the complete lines without token ids."""
        lines = (self._part + data).split(b"\n")
        self._part = lines.pop()
        return b"".join(_line(line) + b"\n" for line in lines)

    def rest(self) -> bytes:
        """End the stream; return the remaining incomplete line without token ids."""
        part, self._part = self._part, b""
        return _line(part)


def without_ids(body: bytes) -> bytes:
    """Return the JSON of a response or of a stream's event with null instead of token ids; the rest is unchanged."""
    if b"token_ids" not in body:
        return body
    try:
        fields = _decode(body)
        choices = _decode_choices(fields["choices"]) if "choices" in fields else []
    except UNREADABLE:
        return body
    for choice in choices:
        _empty(choice, RESPONSE_IDS)
        _empty(choice, PROMPT_IDS)
    _empty(fields, PROMPT_IDS)
    rest: dict[str, object] = {**fields, **({"choices": choices} if "choices" in fields else {})}
    return msgspec.json.encode(rest)


def _empty(fields: _Fields, name: str) -> None:
    if name in fields:
        fields[name] = _NULL


def _line(line: bytes) -> bytes:
    if not line.startswith(b"data:") or b"token_ids" not in line:
        return line
    text = line[5:]
    end = b"\r" if text.endswith(b"\r") else b""
    return b"data: " + without_ids(text.strip()) + end
