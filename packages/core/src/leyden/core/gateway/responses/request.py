"""Requests of the Responses API: parses and checks the body of a request.

Supported fields are parsed. Fields that are only hints are accepted and recorded. Any other field is refused as the
provider would refuse it, and never ignored. `strict` of a tool has no effect, as in Chat Completions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from leyden.core.gateway.answer_format import one_format, read_text_format
from leyden.core.gateway.codec import ToolDefinition
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
    unreadable,
)
from leyden.core.gateway.refusal import Refusal, invalid, unsupported
from leyden.core.gateway.responses.items import Item, chat_messages, check_calls, left_out, read_items
from leyden.core.gateway.tool_choice import apply_tool_choice, check_function_name, read_tool_choice

LOGPROBS = "message.output_text.logprobs"
REASONING_COPY = "reasoning.encrypted_content"
INCLUDABLE = frozenset({
    LOGPROBS, "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url", REASONING_COPY, "web_search_call.action.sources",
    "web_search_call.results",
})  # fmt: skip
"""Accepted values of `include`; the others than these two concern items that the gateway's responses never have."""

HINTS = frozenset({"prompt_cache_options"})
"""Fields that are only hints, in addition to the fields of `ResponsesBody` that the response only repeats."""

LEAST_OUTPUT_TOKENS = 16
"""Smallest `max_output_tokens` that OpenAI accepts."""

REPEATED = frozenset({
    "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
    "text.verbosity", "truncation", "user",
})  # fmt: skip
"""Fields of `ResponsesBody` that are only hints: the response repeats them, and they require nothing of it."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "prompt": (),
}
"""Unsupported fields, each with the values (besides null) that have no effect and are accepted."""


class _StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None


class _Text(msgspec.Struct, frozen=True):
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesTool(msgspec.Struct, frozen=True):
    """Fields of a tool that are read."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """Supported fields of a request, and hints that the response repeats."""

    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    tools: list[Item] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: _Text | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None


KNOWN = frozenset(ResponsesBody.__struct_fields__) | HINTS | NEUTRAL.keys()
RECORDED_SEPARATELY = frozenset({"input", "instructions", "tools", "model", "stream", "stream_options"})
"""Fields that a record keeps separately, and not in `RecordedRequest.rest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Fields of the request that the response repeats, with the provider's defaults."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] = field(default_factory=dict[str, Any])
    safety_identifier: str | None = None
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Any] = field(default_factory=dict[str, Any])
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Item] = field(default_factory=list[Item])
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    user: str | None = None


class ResponsesRequest(ModelRequest, frozen=True, kw_only=True):
    """One checked request of the Responses API."""

    items: list[Item]
    """Items that this request adds to the conversation."""
    earlier: list[Item]
    """Items of the conversation before this request."""
    settings: Settings
    padded: bool
    """Whether the events of a stream are padded, which hides the length of their text."""
    copies_reasoning: bool
    """Whether items of reasoning have an opaque copy of it, for agents that keep nothing else of them."""
    left_out: list[str]
    """Kinds of items that are left out of the prompt, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checked request before its references to earlier responses and items are resolved."""

    body: ResponsesBody
    fields: Mapping[str, msgspec.Raw]
    items: list[Item]
    """Items of the request; references to earlier items are not replaced yet."""

    @property
    def previous(self) -> str | None:
        """Id of the response that this request continues; None if it starts a conversation."""
        return self.body.previous_response_id


def read_draft(body: bytes) -> Draft:
    """Parse a request body and check all but its references; raises Refusal if no response can satisfy it."""
    fields = read_fields(body)
    for name in fields:
        if name not in KNOWN:
            raise Refusal(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    try:
        parsed = msgspec.json.decode(body, type=ResponsesBody)
        items = read_items(parsed.input or [])
        check_fields(fields, KNOWN, NEUTRAL)
    except UNREADABLE as error:
        raise unreadable(error) from None
    if not items and parsed.previous_response_id is None:
        message = 'One of "input" or "previous_response_id" or "prompt" or "conversation_id" must be provided.'
        raise Refusal(400, message, code="missing_required_parameter")
    for value in parsed.include or ():
        if value not in INCLUDABLE:
            supported = ", ".join(f"'{one}'" for one in sorted(INCLUDABLE))
            raise invalid(f"Invalid value: '{value}'. Supported values are: {supported}.", "include")
    return Draft(body=parsed, fields=fields, items=items)


def checked_request(draft: Draft, items: list[Item], earlier: list[Item]) -> ResponsesRequest:
    """Return the checked request of `draft`, with its resolved items and the earlier items of the conversation.

    Raises Refusal for a request that no response can satisfy.
    """
    body = draft.body
    conversation = [*earlier, *items]
    check_calls(conversation)
    messages = chat_messages(conversation)
    if not messages:
        raise invalid("'input' must hold at least one message.", "input")
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    listed = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    offered = [_definition(tool) for tool in listed]
    tools, forced = apply_tool_choice(read_tool_choice(body.tool_choice), offered)
    if body.max_output_tokens is not None:
        check_range("max_output_tokens", body.max_output_tokens, LEAST_OUTPUT_TOKENS)
    logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return ResponsesRequest(
        as_sent=RecordedRequest(
            model=body.model,
            stream=bool(body.stream),
            messages=msgspec.json.encode(messages).decode(),
            tools=msgspec.json.encode(offered).decode() if offered else None,
            rest=rest_of(draft.fields, RECORDED_SEPARATELY),
        ),
        messages=messages,
        tools=tools,
        forced=forced,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        logprobs=logprobs,
        top_logprobs=checked_top_logprobs(body.top_logprobs, wanted=True),
        template_variables=_template_variables(body.reasoning),
        answer_format=one_format("text.format", read_text_format(body.text.format if body.text else None)),
        sampling=checked_sampling(
            SamplingFields(temperature=body.temperature, top_p=body.top_p),
            ("max_output_tokens", body.max_output_tokens),
        ),
        items=items,
        earlier=earlier,
        settings=_settings(body, listed),
        padded=body.stream_options is None or body.stream_options.include_obfuscation is not False,
        copies_reasoning=REASONING_COPY in (body.include or ()),
        left_out=left_out(conversation),
    )


def _template_variables(reasoning: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the variables for the chat template, as Chat Completions has them."""
    effort = (reasoning or {}).get("effort")
    if effort is None:
        return {}
    if not isinstance(effort, str):
        raise invalid("Invalid type for 'reasoning.effort': expected a string.", "reasoning.effort")
    return {"reasoning_effort": effort}


def _tool(given: Item, where: str) -> ResponsesTool:
    try:
        tool = msgspec.convert(given, ResponsesTool)
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid '{where}': {error}", where) from None
    if tool.type != "function":
        raise unsupported(where, f"is a tool of type '{tool.type}', which is not available; only functions are.")
    if tool.name is None:
        message = f"Missing required parameter: '{where}.name'."
        raise Refusal(400, message, param=f"{where}.name", code="missing_required_parameter")
    check_function_name(tool.name, f"{where}.name")
    if tool.defer_loading or (tool.allowed_callers is not None and "direct" not in tool.allowed_callers):
        raise unsupported(where, "asks for loading or calling it in a way that is not available.")
    return tool


def _definition(tool: ResponsesTool) -> ToolDefinition:
    fields = ("name", "description", "parameters", "strict")
    definition = {key: getattr(tool, key) for key in fields if getattr(tool, key) is not None}
    return {"type": "function", "function": definition}


def _format(text: _Text | None) -> dict[str, Any]:
    """Return the format that the response repeats."""
    given = (text and text.format) or {"type": "text"}
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    return {"type": "json_schema", "description": None, "name": None, "schema": None, "strict": True} | given


def _settings(body: ResponsesBody, tools: Sequence[ResponsesTool]) -> Settings:
    """Return the fields that the response repeats, in the provider's format."""
    return Settings(
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning={"effort": None, "summary": None} | (body.reasoning or {}),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=1.0 if body.temperature is None else body.temperature,
        text={"format": _format(body.text), "verbosity": (body.text and body.text.verbosity) or "medium"},
        tool_choice=body.tool_choice or "auto",
        tools=[
            {
                "type": "function",
                "description": tool.description,
                "name": tool.name,
                "parameters": tool.parameters,
                "strict": tool.strict is not False,
            }
            for tool in tools
        ],
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
