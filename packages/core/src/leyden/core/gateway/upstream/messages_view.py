"""Upstream response view for the Messages API: parses a response of an upstream server for the record; never raises."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leyden.core.gateway.anthropic.blocks import arguments_of
from leyden.core.gateway.chat.format import answer_message
from leyden.core.gateway.codecs.answer_reader import AnswerCall
from leyden.core.gateway.model_request import UNREADABLE

ENDS = b"\nevent: message_stop"
"""Beginning of the event that ends a stream; its line break cannot be part of JSON."""
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """All tokens of the prompt; the provider counts those in its cache separately."""
        if self.input_tokens is None:
            return None
        return self.input_tokens + (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    json: str = ""
    """Parts of the input that a stream has sent."""


class _Message(msgspec.Struct, frozen=True):
    type: str = ""
    role: str = ""
    id: str | None = None
    model: str | None = None
    content: list[_Block] = []
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Delta(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    message: _Message | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class MessagesView(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a response of the Messages API that a record keeps."""

    output: str | None
    """JSON of the message, in the format of Chat Completions."""
    finish_reason: str | None
    usage: tuple[int, int] | None
    model: str | None
    id: str | None


def read_messages_answer(pieces: Sequence[bytes], *, streamed: bool) -> MessagesView | None:
    """Parse a whole or partial response of the Messages API; None if it is not one.

    `pieces` has the JSON of the response, or the data of each event of a stream.
    """
    if not streamed:
        whole = _decoded(pieces[0], _Message)
        return None if whole is None or (whole.type, whole.role) != ("message", "assistant") else _view(whole)
    events = [found for piece in pieces if (found := _decoded(piece, _Event))]
    first = next((found.message for found in events if found.type == "message_start" and found.message), None)
    if first is None:
        return None
    blocks: dict[int, _Block] = {}
    stop_reason: str | None = None
    last_usage = first.usage or _Usage()
    for found in events:
        _add(blocks, found)
        if found.type == "message_delta":
            stop_reason = found.delta.stop_reason if found.delta else None
            last_usage = _merged(last_usage, found.usage or _Usage())
    content = [blocks[index] for index in sorted(blocks)]
    return _view(msgspec.structs.replace(first, content=content, stop_reason=stop_reason, usage=last_usage))


def is_messages_error(body: bytes) -> bool:
    """Return whether a body is an error in the format of the Messages API."""
    found = _decoded(body, _Message)
    return found is not None and found.type == "error"


def _view(whole: _Message) -> MessagesView:
    calls = [
        AnswerCall(id=block.id, name=block.name, arguments=block.json or arguments_of(block.input) or "")
        for block in whole.content
        if block.type == "tool_use"
    ]
    text = "".join(block.text for block in whole.content if block.type == "text") or None
    prompt, answer = (whole.usage.prompt_tokens, whole.usage.output_tokens) if whole.usage else (None, None)
    return MessagesView(
        output=msgspec.json.encode([answer_message(text, calls)]).decode() if whole.content else None,
        finish_reason=_FINISH.get(whole.stop_reason or ""),
        usage=None if prompt is None or answer is None else (prompt, answer),
        model=whole.model,
        id=whole.id,
    )


def _add(blocks: dict[int, _Block], found: _Event) -> None:
    """Add the content of an event to the blocks of the response so far."""
    if found.content_block is not None:
        blocks[found.index] = found.content_block
    block = blocks.get(found.index)
    if block is not None and found.type == "content_block_delta" and found.delta is not None:
        block.text += found.delta.text
        block.json += found.delta.partial_json


def _merged(first: _Usage, last: _Usage) -> _Usage:
    """Return the token counts of `last`, and those of `first` that `last` does not have."""
    known = {key: value for key, value in msgspec.structs.asdict(last).items() if value is not None}
    return msgspec.structs.replace(first, **known)


def _decoded(piece: bytes, kind: type[Any]) -> Any:
    """Return a piece of JSON as a `kind`; None if it is something else."""
    try:
        return msgspec.json.decode(piece, type=kind)
    except UNREADABLE:
        return None
