"""Requests of the Messages API: parses and checks the body of a request.

Supported fields are parsed. Fields that are only hints are accepted and recorded. Any other field is refused as the
provider would refuse it, and never ignored. `strict` of a tool is accepted but not enforced, as in Chat Completions.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.anthropic.blocks import MessagesMessage, TextBlock, chat_messages, clear_thinking, left_out
from leyden.core.gateway.anthropic.errors import not_available, not_permitted, unreadable_body, wrong
from leyden.core.gateway.anthropic.tools import MessagesTool, MessagesToolChoice, chosen_tools, definitions
from leyden.core.gateway.codec import Message, ToolDefinition
from leyden.core.gateway.model_request import (
    LARGEST_INTEGER,
    UNREADABLE,
    ModelRequest,
    RecordedRequest,
    SamplingFields,
    checked_sampling,
    rest_of,
    text_of,
)
from leyden.core.gateway.parameter_notes import NOTES
from leyden.core.gateway.refusal import Refusal
from leyden.core.grammar.rules import AnswerFormat
from leyden.core.masking import mask_json

HINTS = frozenset({
    "billing_policy", "cache_control", "diagnostics", "inference_geo", "metadata", "service_tier", "speed",
    "user_profile_id", "workspace_id",
})  # fmt: skip
"""Fields that are only hints: they require nothing of the response."""

HINTED_PARTS = frozenset({"thinking.budget_tokens"})
"""Parts of supported fields that are only hints."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "compaction": (),
    "container": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "mcp_servers": ([],),
    "output_format": (),
    "thread": (),
}
"""Unsupported fields, each with the values (besides null) that have no effect and are accepted."""

LEAST_BUDGET = 1024
"""Smallest `thinking.budget_tokens` that Anthropic accepts."""
MAX_STOP = 64
MAX_STOP_CHARACTERS = 1024
"""Longest stop sequence in characters; limited because the text is searched for it at every token."""
CALL_ID_PREFIX = "toolu_"


class _Thinking(msgspec.Struct, frozen=True):
    """Settings of the model's thinking; the policy's template decides what they change."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def enabled(self) -> bool:
        """Whether the model may think."""
        return self.type != "disabled"


class _OutputFormat(msgspec.Struct, frozen=True):
    type: str = "json_schema"
    schema: dict[str, Any] | None = None


class _OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: _OutputFormat | None = None


class _KeptThinking(msgspec.Struct, frozen=True):
    type: Literal["all", "thinking_turns"]
    value: int | None = None


class _Edit(msgspec.Struct, frozen=True):
    """One edit of the history before the model reads it."""

    type: str
    keep: Literal["all"] | _KeptThinking = _KeptThinking("thinking_turns", 1)


class _ContextManagement(msgspec.Struct, frozen=True):
    edits: list[_Edit] = []


class CountBody(msgspec.Struct, frozen=True, kw_only=True):
    """Supported fields of a request to count tokens."""

    model: str
    messages: list[MessagesMessage]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    context_management: _ContextManagement | None = None


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """Supported fields of a request."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


_BODY, _COUNT = msgspec.json.Decoder(MessagesBody), msgspec.json.Decoder(CountBody)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
KNOWN = frozenset(MessagesBody.__struct_fields__) | HINTS | NEUTRAL.keys()
KNOWN_OF_COUNT = frozenset(CountBody.__struct_fields__) | HINTS | NEUTRAL.keys()
RECORDED_SEPARATELY = frozenset({"messages", "system", "tools", "model", "stream"})
"""Fields that a record keeps separately, and not in `RecordedRequest.rest`."""


class _Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that a record has in another format."""

    messages: list[MessagesMessage] = []
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None


_CONVERSATION = msgspec.json.Decoder(_Conversation)


class MessagesRequest(ModelRequest, frozen=True, kw_only=True):
    """One checked request of the Messages API."""

    thinking: Literal["shown", "sealed", "hidden"] = "hidden"
    """How the response has the reasoning: as text, as an opaque copy, or, without the agent's consent, not at all."""
    left_out: list[str]
    """Kinds of blocks that are left out of the prompt, with the reasons."""


def parse_messages(body: bytes) -> MessagesRequest:
    """Parse and check a request body; raises Refusal for a request that no response can satisfy."""
    try:
        fields = _read_fields(body, KNOWN)
        parsed = _BODY.decode(body)
    except UNREADABLE as error:
        raise unreadable_body(error) from None
    return _checked(parsed, fields, _sampling(parsed), stream=bool(parsed.stream))


def parse_count(body: bytes) -> MessagesRequest:
    """Parse and check a request to count the tokens of a prompt; raises Refusal for an invalid request."""
    try:
        fields = _read_fields(body, KNOWN_OF_COUNT)
        parsed = _COUNT.decode(body)
    except UNREADABLE as error:
        raise unreadable_body(error) from None
    return _checked(parsed, fields, Sampling(), stream=False)


def recorded_request(body: bytes, fields: Mapping[str, msgspec.Raw]) -> RecordedRequest:
    """Return a request to an upstream server as it is recorded, in the format of Chat Completions.

    What has no such format, such as documents and tools of the server, is recorded as it was sent. Then `system` is
    among the other fields.
    """
    tools, messages = text_of(fields.get("tools")), _converted(body, _messages_of)
    return RecordedRequest(
        model=bytes(fields.get("model", b"")).decode().strip('"'),
        stream=bytes(fields.get("stream", b"")) == b"true",
        messages=messages or text_of(fields.get("messages")),
        tools=_converted(body, _tools_of) or (mask_json(tools) if tools else None),
        rest=rest_of(fields, RECORDED_SEPARATELY if messages else RECORDED_SEPARATELY - {"system"}),
    )


def _read_fields(body: bytes, known: frozenset[str]) -> dict[str, msgspec.Raw]:
    """Split a request body into its fields; raises Refusal for a field that is unknown or not supported."""
    body.decode()
    fields = _FIELDS.decode(body)
    for name, raw in fields.items():
        if name not in known:
            raise not_permitted(name)
        if name in NEUTRAL:
            value: object = msgspec.json.decode(raw)
            if value is not None and value not in NEUTRAL[name]:
                raise not_available(name, f"this field is not available from this endpoint ({NOTES[name]}).")
    return fields


def _checked(
    body: CountBody, fields: Mapping[str, msgspec.Raw], sampling: Sampling, *, stream: bool
) -> MessagesRequest:
    messages = _messages_of(body)
    _edit(messages, body.context_management)
    if not messages:
        raise wrong("messages", "at least one message is required")
    if messages[-1]["role"] == "assistant":
        message = (
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
        raise wrong("messages", message)
    offered = _tools_of(body)
    tools, forced = chosen_tools(body.tool_choice, offered)
    choice = body.tool_choice
    return MessagesRequest(
        as_sent=RecordedRequest(
            model=body.model,
            stream=stream,
            messages=msgspec.json.encode(messages).decode(),
            tools=msgspec.json.encode(offered).decode() if offered else None,
            rest=rest_of(fields, RECORDED_SEPARATELY),
        ),
        messages=messages,
        tools=tools,
        forced=forced,
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        call_id_prefix=CALL_ID_PREFIX,
        template_variables=_template_variables(body),
        answer_format=_answer_format(body.output_config.format if body.output_config else None),
        sampling=sampling,
        thinking=_thinking(body.thinking),
        left_out=left_out(body.messages),
    )


def _thinking(given: _Thinking | None) -> Literal["shown", "sealed", "hidden"]:
    """Return how the response has the reasoning; as at the provider, only requests that enable thinking get it."""
    if given is None or not given.enabled:
        return "hidden"
    return "sealed" if given.display == "omitted" else "shown"


def _template_variables(body: CountBody) -> dict[str, Any]:
    """Return the variables for the chat template, by the names that templates and Chat Completions use."""
    found: dict[str, Any] = {}
    if body.output_config is not None and body.output_config.effort is not None:
        found["reasoning_effort"] = body.output_config.effort
    if body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        found["enable_thinking"] = body.thinking.type == "enabled"
    return found


def _messages_of(body: "CountBody | _Conversation") -> list[Message]:
    return chat_messages(body.system, body.messages)


def _tools_of(body: "CountBody | _Conversation") -> list[ToolDefinition]:
    return definitions(body.tools or ())


def _edit(messages: list[Message], management: _ContextManagement | None) -> None:
    """Remove the thinking that `context_management` removes; raises Refusal for any other edit."""
    for index, edit in enumerate(management.edits if management else ()):
        location = f"context_management.edits.{index}"
        if not edit.type.startswith("clear_thinking_"):
            raise not_available(location, f"edits of type '{edit.type}' are not available. Remove this edit.")
        if edit.keep == "all" or edit.keep.type == "all":
            continue
        if edit.keep.value is None or edit.keep.value < 1:
            raise wrong(f"{location}.keep.thinking_turns.value", "Input should be greater than 0")
        clear_thinking(messages, edit.keep.value)


def _converted(body: bytes, read: "Callable[[_Conversation], list[dict[str, Any]]]") -> str | None:
    """Return the JSON of a part of a request in the format of Chat Completions; None if it has no such format."""
    try:
        found = read(_CONVERSATION.decode(body))
    except (*UNREADABLE, Refusal):
        return None
    return msgspec.json.encode(found).decode() if found else None


def _answer_format(given: _OutputFormat | None) -> AnswerFormat | None:
    """Return the format that the answer must have; it is checked later, by `answer_format.check_format`."""
    if given is None:
        return None
    where = "output_config.format"
    if given.type != "json_schema" or given.schema is None:
        raise wrong(where, "Input should be {'type': 'json_schema', 'schema': {...}}")
    return AnswerFormat(kind="json", text=msgspec.json.encode(given.schema).decode(), field=f"{where}.schema")


def _sampling(body: MessagesBody) -> Sampling:
    _check_number("temperature", body.temperature, 0, 1)
    _check_number("top_p", body.top_p, 0, 1)
    _check_number("top_k", body.top_k, 0)
    _check_number("max_tokens", body.max_tokens, 1, LARGEST_INTEGER)
    _check_budget(body)
    stop = tuple(body.stop_sequences or ())
    if len(stop) > MAX_STOP:
        raise wrong("stop_sequences", f"List should have at most {MAX_STOP} items")
    for index, text in enumerate(stop):
        if not text.strip():
            raise wrong(f"stop_sequences.{index}", "each stop sequence must contain non-whitespace")
        if len(text) > MAX_STOP_CHARACTERS:
            raise wrong(f"stop_sequences.{index}", f"String should have at most {MAX_STOP_CHARACTERS} characters")
    limit = ("max_tokens", body.max_tokens)
    sampling = checked_sampling(SamplingFields(temperature=body.temperature, top_p=body.top_p), limit)
    return msgspec.structs.replace(sampling, stop=stop, top_k=body.top_k or 0)


def _check_budget(body: MessagesBody) -> None:
    """Raise Refusal for a budget of thinking that the provider refuses.

    With tools, the provider may allow a budget above `max_tokens`, because it counts for all turns together.
    """
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return
    _check_number("thinking.enabled.budget_tokens", thinking.budget_tokens, LEAST_BUDGET)
    if body.max_tokens <= thinking.budget_tokens and not body.tools:
        raise wrong("max_tokens", "Input should be greater than `thinking.budget_tokens`")


def _check_number(name: str, value: float | None, least: int, most: int | None = None) -> None:
    if value is None:
        return
    if value < least:
        raise wrong(name, f"Input should be greater than or equal to {least}")
    if most is not None and value > most:
        raise wrong(name, f"Input should be less than or equal to {most}")
