"""Token ids in the answers of an upstream: how they are asked for, and taken out of what the agent gets.

vLLM's name for them: a chat completion with `return_token_ids` has `prompt_token_ids`, and `token_ids` in each choice.
Where they are not asked for it sends both as null, and so does what is taken out here.
"""

from dataclasses import dataclass

import msgspec

from leyden.core.gateway.model_request import UNREADABLE

PROMPT_IDS, RESPONSE_IDS = "prompt_token_ids", "token_ids"


@dataclass(frozen=True, slots=True)
class AskForIds:
    """A field of a request."""

    path: str
    field: str


ASK_FOR_IDS = AskForIds("/chat/completions", "return_token_ids")

_Fields = dict[str, msgspec.Raw]
_NULL = msgspec.Raw(b"null")
_decode = msgspec.json.Decoder(_Fields).decode
_decode_choices = msgspec.json.Decoder(list[_Fields]).decode


class TokenIdFilter:
    """Takes token ids out of one answer; a stream's events pass as soon as each is whole."""

    def __init__(self) -> None:
        self._part = b""

    def whole(self, body: bytes) -> bytes:
        """Return an answer in one piece without them."""
        return without_ids(body)

    def push(self, data: bytes) -> bytes:
        """Return as much of a stream as there is by now, without them."""
        lines = (self._part + data).split(b"\n")
        self._part = lines.pop()
        return b"".join(_line(line) + b"\n" for line in lines)

    def rest(self) -> bytes:
        """Return what a stream ends with that is no whole line."""
        part, self._part = self._part, b""
        return _line(part)


def without_ids(body: bytes) -> bytes:
    """Return an answer, or a stream's event, with null in place of token ids; all else of it is as it was."""
    if b"token_ids" not in body:
        return body
    try:
        fields = _decode(body)
        choices = _decode_choices(fields["choices"]) if "choices" in fields else []
    except UNREADABLE:
        return body
    for choice in choices:
        _empty(choice, RESPONSE_IDS)
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
