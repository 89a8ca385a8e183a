"""Upstream response view: parses the response of an upstream server for the record; it never raises."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from leyden.core.gateway.chat.format import answer_message
from leyden.core.gateway.codecs.answer_reader import AnswerCall
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.upstream.messages_view import ENDS, read_messages_answer

T = TypeVar("T")

_ENDS = (
    b"data: [DONE]",
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
    ENDS,
)


class AnswerView(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a response that a record keeps; None for parts that the response does not have."""

    output: str | None = None
    """JSON of the messages in the response."""
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None
    """Numbers of prompt tokens and response tokens."""
    model: str | None = None
    id: str | None = None
    """Id of the response."""
    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    """Token ids of the only choice; None with several choices, because a record cannot assign the ids to a choice."""
    logprobs: list[float] = []
    """Log-probabilities of `ids`, if the agent requested them; empty otherwise."""


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Token(msgspec.Struct, frozen=True):
    logprob: float


class _LogProbs(msgspec.Struct, frozen=True):
    content: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None
    """In Completions; those of the prompt come first if the response repeats it."""


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    text: str | None = None
    """Text in Completions, which has no messages."""
    logprobs: _LogProbs | None = None
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    id: str | None = None
    choices: list[_Choice] = []
    model: str | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


class _Part(msgspec.Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    call_id: str | None = None
    name: str = ""
    arguments: str = ""


class _Counts(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0


class _Response(msgspec.Struct, frozen=True):
    """A response of the Responses API."""

    object: str = ""
    id: str | None = None
    output: list[_Item] = []
    model: str | None = None
    status: str | None = None
    usage: _Counts | None = None


class _Event(msgspec.Struct, frozen=True):
    """An event of a streamed response of the Responses API."""

    type: str
    response: _Response | None = None
    output_index: int = 0
    item: _Item | None = None
    delta: Any = None


def ended(seen: bytes | bytearray) -> bool:
    """Whether the part of a stream received so far contains the event that ends the response."""
    return any(mark in seen for mark in _ENDS)


def read_answer(body: bytes, *, streamed: bool) -> AnswerView:
    """Parse a whole or partial response of Chat Completions, Completions, the Responses API or the Messages API."""
    pieces = list(_data(body)) if streamed else [body]
    if found := read_messages_answer(pieces, streamed=streamed):
        return AnswerView(**msgspec.structs.asdict(found))
    return _read_responses(pieces, streamed=streamed) or _read_chat(pieces)


def _read_responses(pieces: Sequence[bytes], *, streamed: bool) -> AnswerView | None:
    """Parse a response of the Responses API; None if it is not one."""
    items: dict[int, _Item] = {}
    last: _Response | None = None
    for piece in pieces:
        if not streamed:
            last = _decoded(piece, _Response)
        elif event := _decoded(piece, _Event):
            last = event.response or last
            _add(items, event)
    if last is None or last.object != "response":
        return None
    output = last.output or [items[index] for index in sorted(items)]
    calls = [
        AnswerCall(id=item.call_id, name=item.name, arguments=item.arguments)
        for item in output
        if item.type == "function_call" and item.call_id
    ]
    parts = [part for item in output if item.type == "message" for part in item.content or ()]
    text = "".join(part.text or part.refusal or "" for part in parts) or None
    finish = {"incomplete": "length", "completed": "tool_calls" if calls else "stop"}.get(last.status or "")
    return AnswerView(
        output=msgspec.json.encode([answer_message(text, calls)]).decode() if output else None,
        finish_reason=finish,
        usage=(last.usage.input_tokens, last.usage.output_tokens) if last.usage else None,
        model=last.model,
        id=last.id,
    )


def _add(items: dict[int, _Item], event: _Event) -> None:
    """Add the content of a stream's event to the items of the response so far."""
    if event.item is not None:
        items[event.output_index] = event.item
        return
    item = items.get(event.output_index)
    if item is None or not isinstance(event.delta, str):
        return
    if event.type in ("response.output_text.delta", "response.refusal.delta"):
        item.content = [*(item.content or ()), _Part(text=event.delta)]
    elif event.type == "response.function_call_arguments.delta":
        item.arguments += event.delta


def _read_chat(pieces: Sequence[bytes]) -> AnswerView:
    """Parse a response of Chat Completions or Completions."""
    answers = [answer for piece in pieces if (answer := _decoded(piece, _Answer))]
    messages: dict[int, dict[str, Any]] = {}
    finish_reason: str | None = None
    for choice in (choice for answer in answers for choice in answer.choices):
        _merge(messages.setdefault(choice.index, {}), choice.message or choice.delta or _text_delta(choice))
        finish_reason = choice.finish_reason or finish_reason
    usage = next((answer.usage for answer in reversed(answers) if answer.usage), None)
    ids, logprobs = _only_choice(answers) if len(messages) == 1 else (None, [])
    return AnswerView(
        output=msgspec.json.encode([messages[index] for index in sorted(messages)]).decode() if messages else None,
        finish_reason=finish_reason,
        usage=(usage.prompt_tokens, usage.completion_tokens) if usage else None,
        model=next((answer.model for answer in answers if answer.model), None),
        id=next((answer.id for answer in answers if answer.id), None),
        prompt_ids=_prompt_ids(answers),
        ids=ids,
        logprobs=logprobs,
    )


def _only_choice(answers: Sequence[_Answer]) -> tuple[list[int] | None, list[float]]:
    """Return the token ids of the only choice and their log-probabilities.

    The ids are None if the response has none. The log-probabilities are empty unless there is one for each id.
    """
    choices = [choice for answer in answers for choice in answer.choices]
    id_lists = [choice.token_ids for choice in choices if choice.token_ids is not None]
    ids = [token for id_list in id_lists for token in id_list]
    logprobs = [value for choice in choices if choice.logprobs for value in _values(choice.logprobs)]
    known = [value for value in logprobs if value is not None]
    return (ids if id_lists else None), (known if len(logprobs) == len(known) == len(ids) else [])


def _text_delta(choice: _Choice) -> dict[str, Any]:
    """Return the text of a choice of Completions as a message."""
    return {} if choice.text is None else {"role": "assistant", "content": choice.text}


def _prompt_ids(answers: Sequence[_Answer]) -> list[int] | None:
    found = [answer.prompt_token_ids for answer in answers]
    found += [choice.prompt_token_ids for answer in answers for choice in answer.choices]
    return next((ids for ids in found if ids is not None), None)


def _values(logprobs: _LogProbs) -> Sequence[float | None]:
    """Return the log-probabilities of the tokens of a choice; the first token of a prompt has none."""
    return logprobs.token_logprobs or [token.logprob for token in logprobs.content or ()]


def _decoded(piece: bytes, kind: type[T]) -> T | None:
    """Return a piece of JSON as a `kind`; None if it is something else."""
    try:
        return msgspec.json.decode(piece, type=kind)
    except UNREADABLE:
        return None


def _data(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    return (line[5:] for line in body.splitlines() if line.startswith(b"data:"))


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Merge a stream's delta into a message: texts are joined, and tool calls are matched by their index."""
    for key, value in delta.items():
        if isinstance(value, str) and key not in ("role", "id", "type") and isinstance(message.get(key), str):
            message[key] += value
        elif isinstance(value, list) and all(isinstance(item, dict) and "index" in item for item in _items(value)):
            calls: list[dict[str, Any]] = message.setdefault(key, [])
            for call in _items(value):
                known = next((known for known in calls if known["index"] == call["index"]), None)
                if known is None:
                    known = {"index": call["index"]}
                    calls.append(known)
                _merge(known, {part: call[part] for part in call if part != "index"})
        elif isinstance(value, dict) and isinstance(message.get(key), dict):
            _merge(message[key], _fields(value))
        elif value is not None or key not in message:
            message[key] = value


def _items(value: Any) -> list[Any]:
    return value


def _fields(value: Any) -> dict[str, Any]:
    return value
