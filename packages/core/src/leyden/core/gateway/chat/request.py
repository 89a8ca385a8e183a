"""Chat Completions requests: parses and checks the body of a request.

Supported fields are parsed. Fields that are only hints are accepted and recorded. Any other field is refused as the
provider would refuse it, and never ignored. `strict` of a tool has no effect: forced calls, and calls beside a required
format, follow the tool's schema in any case. Other calls need not. The agent gets a call that violates the schema as a
mistake of the model.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.answer_format import one_format, read_guided, read_response_format
from leyden.core.gateway.codec import OWN_VARIABLES, Message, ToolDefinition
from leyden.core.gateway.message_images import IMAGE, ROLES
from leyden.core.gateway.model_request import (
    UNREADABLE,
    ModelRequest,
    RecordedRequest,
    SamplingFields,
    check_fields,
    check_range,
    checked_sampling,
    checked_top_logprobs,
    read_fields,
    rest_of,
    text_of,
    unreadable,
)
from leyden.core.gateway.refusal import invalid, unsupported
from leyden.core.gateway.tool_choice import apply_tool_choice, check_function_name, read_tool_choice

HINTS = frozenset({
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user", "verbosity",
})  # fmt: skip
"""Fields that are only hints: they require nothing of the response."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "web_search_options": (),
}
"""Unsupported fields, each with the values (besides null) that have no effect and are accepted."""

TEXT_PARTS = frozenset({"text", "refusal"})
MAX_STOP = 4
MAX_STOP_CHARACTERS = 1024
"""Longest stop string in characters; limited because the text is searched for it at every token."""
MAX_CHOICES = 128


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _MessageCall(msgspec.Struct, frozen=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _ImageUrl(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageUrl | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """Checked fields of a message; its other fields are passed to the template unchanged."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_MessageCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    audio: object = None
    function_call: object = None


class _ToolFunction(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(msgspec.Struct, frozen=True):
    """Checked fields of a tool."""

    type: str
    function: _ToolFunction | None = None


class ChatBody(SamplingFields, frozen=True, kw_only=True):
    """Supported fields of a request."""

    model: str
    messages: list[Message]
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None


_BODY = msgspec.json.Decoder(ChatBody)
KNOWN = frozenset(ChatBody.__struct_fields__) | HINTS | NEUTRAL.keys()
RECORDED_SEPARATELY = frozenset({"messages", "tools", "model", "stream", "stream_options"})
"""Fields that a record keeps separately, and not in `RecordedRequest.rest`."""


class ChatRequest(ModelRequest, frozen=True, kw_only=True):
    """One checked request of Chat Completions."""

    include_usage: bool = False
    """Whether a stream ends with token counts."""
    padded: bool = True
    """Whether the events of a stream are padded."""


def parse_chat(body: bytes) -> ChatRequest:
    """Parse and check a request body; raises Refusal for a request that no response can satisfy."""
    fields = read_fields(body)
    try:
        parsed = _BODY.decode(body)
        _check_messages(parsed.messages)
        check_fields(fields, KNOWN, NEUTRAL)
    except UNREADABLE as error:
        raise unreadable(error) from None
    choice = read_tool_choice(parsed.tool_choice)
    _check_options(parsed)
    tools, forced = apply_tool_choice(choice, _tools(parsed.tools or []))
    answer_format = one_format(
        "response_format",
        read_response_format(parsed.response_format),
        read_guided(parsed),
    )
    return ChatRequest(
        as_sent=RecordedRequest(
            model=parsed.model,
            stream=bool(parsed.stream),
            messages=text_of(fields["messages"]),
            tools=text_of(fields.get("tools")) if parsed.tools else None,
            rest=rest_of(fields, RECORDED_SEPARATELY),
        ),
        messages=parsed.messages,
        tools=tools,
        forced=forced,
        parallel_tool_calls=parsed.parallel_tool_calls is not False,
        choices=_choices(parsed.n),
        logprobs=bool(parsed.logprobs),
        top_logprobs=checked_top_logprobs(parsed.top_logprobs, wanted=bool(parsed.logprobs)),
        sampling=_sampling(parsed),
        answer_format=answer_format,
        template_variables=_template_variables(parsed),
        return_token_ids=bool(parsed.return_token_ids),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        padded=parsed.stream_options is None or parsed.stream_options.include_obfuscation is not False,
    )


def checked_stop(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings of a request; raises Refusal for too many, too long or empty ones."""
    stop = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stop) > MAX_STOP or "" in stop:
        raise invalid(f"'stop' must hold at most {MAX_STOP} strings, none of them empty.", "stop")
    if any(len(text) > MAX_STOP_CHARACTERS for text in stop):
        raise invalid(f"'stop' must hold strings of at most {MAX_STOP_CHARACTERS} characters.", "stop")
    return stop


def _check_messages(messages: list[Message]) -> None:
    if not messages:
        raise invalid("'messages' must hold at least one message.", "messages")
    checked = _read_messages(messages)
    for index, message in enumerate(checked):
        location = f"messages[{index}]"
        if isinstance(message.content, list):
            for part in message.content:
                _check_part(part, message.role, location)
        elif message.content is None and message.role != "assistant":
            raise invalid(f"{location} has no content; only an assistant's may be null.", location)
        if message.role == "tool" and message.tool_call_id is None:
            raise invalid(f"{location} has role 'tool' and no tool_call_id.", location)
        if message.audio is not None or message.function_call is not None:
            raise unsupported(location, "holds audio or a deprecated function_call, which cannot be read.")
    _check_calls(checked)


def _read_messages(messages: list[Message]) -> list[ChatMessage]:
    try:
        return msgspec.convert(messages, list[ChatMessage])
    except msgspec.ValidationError:
        for index, message in enumerate(messages):
            if message.get("role") == "function":
                reason = "has the role 'function', which is deprecated: send role 'tool' with a tool_call_id."
                raise unsupported(f"messages[{index}]", reason) from None
        raise


def _check_calls(messages: list[ChatMessage]) -> None:
    """Raise Refusal for a result without its tool call before it, and for a tool call without its result."""
    known: set[str] = set()
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message.tool_calls:
            made = [call.id for call in message.tool_calls]
            known.update(made)
            open_calls.update(made)
        elif message.role == "tool":
            called = message.tool_call_id or ""
            open_calls.discard(called)
            if called not in known:
                reason = f"no message before it has a tool call with the id '{called}' in 'tool_calls'"
                raise invalid(f"messages[{index}] has role 'tool', but {reason}.", f"messages[{index}].role")
    if open_calls:
        raise invalid(
            "An assistant's 'tool_calls' have no message with role 'tool' that answers them. Send a result for each of "
            f"these ids: {', '.join(sorted(open_calls))}.",
            "messages",
        )


def _check_part(part: _Part, role: str, location: str) -> None:
    if part.type == IMAGE and role in ROLES:
        if part.image_url is None:
            raise invalid(f"{location}.content holds an '{IMAGE}' part without its URL.", location)
        return
    if part.type not in TEXT_PARTS:
        readable = "only text and images can be read" if role in ROLES else "only text can be read"
        raise unsupported(f"{location}.content", f"holds a part of type '{part.type}'; {readable}.")
    if part.text is None and part.refusal is None:
        raise invalid(f"{location}.content holds a '{part.type}' part without its text.", location)


def _check_options(body: ChatBody) -> None:
    """Raise Refusal for a field that the provider accepts only beside another."""
    if body.tool_choice not in (None, "none") and body.tools is None:
        raise invalid("'tool_choice' can only be given together with 'tools'.", "tool_choice")
    if body.stream_options is not None and not body.stream:
        raise invalid("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")


def _tools(tools: list[ToolDefinition]) -> list[ToolDefinition]:
    try:
        checked = msgspec.convert(tools, list[ChatTool])
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid 'tools': {error}", "tools") from None
    for index, tool in enumerate(checked):
        if tool.type != "function" or tool.function is None:
            raise unsupported("tools", f"holds a tool of type '{tool.type}'; only functions are available.")
        check_function_name(tool.function.name, f"tools[{index}].function.name")
    return tools


def _choices(n: int | None) -> int:
    if n is not None:
        check_range("n", n, 1, MAX_CHOICES)
    return n or 1


def _template_variables(body: ChatBody) -> dict[str, Any]:
    """Return the variables for the chat template; raises Refusal for one that the gateway sets itself."""
    given = body.chat_template_kwargs or {}
    for name in OWN_VARIABLES & given.keys():
        raise unsupported("chat_template_kwargs", f"cannot set '{name}', because the request itself determines it.")
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return effort | given


def _sampling(body: ChatBody) -> Sampling:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise invalid(message, "max_tokens")
    has_new_name = body.max_completion_tokens is not None
    limit = ("max_completion_tokens", body.max_completion_tokens) if has_new_name else ("max_tokens", body.max_tokens)
    sampling = checked_sampling(body, limit)
    return msgspec.structs.replace(sampling, stop=checked_stop(body.stop))
