"""Schemas of the bodies on the wire, from the structs that read and write them. Knows nothing of paths.

A struct says what is there and of which type; what a reader checks besides is added here from the constants that it
checks with. Conditions between fields (a tool's message names its call) are not said: such a request gets a 400.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from leyden.core.gateway.anthropic import format as messages_format
from leyden.core.gateway.anthropic import request as messages_request
from leyden.core.gateway.anthropic.errors import MessagesErrorEnvelope
from leyden.core.gateway.anthropic.request import CountBody, MessagesBody
from leyden.core.gateway.chat import request as chat_request
from leyden.core.gateway.chat.format import Chunk, Completion
from leyden.core.gateway.chat.request import ChatBody, ChatMessage, ChatTool
from leyden.core.gateway.completions import format as completions_format
from leyden.core.gateway.completions import request as completions_request
from leyden.core.gateway.completions.request import CompletionsBody
from leyden.core.gateway.model_request import LARGEST_INTEGER, MAX_TOP_LOGPROBS
from leyden.core.gateway.refusal import ErrorEnvelope
from leyden.core.gateway.responses import request as responses_request
from leyden.core.gateway.responses.format import Ending, Head, Status, billed, response
from leyden.core.gateway.responses.items import ROLES, ItemFields
from leyden.core.gateway.responses.request import ResponsesBody, ResponsesTool, Settings

Schema: TypeAlias = dict[str, Any]
Schemas: TypeAlias = dict[str, Schema]

NULL: Schema = {"type": "null"}
_CHOICES = ["auto", "none", "required"]
_TEXTS = {("text",): ("text",), ("refusal",): ("refusal",)}
_TEXTS_OF_ITEMS = {("input_text", "output_text"): ("text",), ("refusal",): ("refusal",)}
_MESSAGES = {("developer", "system", "user"): ("content",), ("assistant",): (), ("tool",): ("content", "tool_call_id")}
_ITEMS = {
    ("message",): ("role", "content"),
    ("function_call",): ("call_id", "name", "arguments"),
    ("function_call_output",): ("call_id", "output"),
    ("item_reference",): ("id",),
    ("reasoning",): (),
}
_BLOCKS = {
    ("text",): ("text",),
    ("thinking",): ("thinking",),
    ("redacted_thinking",): (),
    ("tool_use",): ("id", "name", "input"),
    ("tool_result",): ("tool_use_id",),
}


class Health(msgspec.Struct, frozen=True):
    """That the gateway is there."""

    status: Literal["ok"]


class Model(msgspec.Struct, frozen=True):
    """One policy, as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct, frozen=True):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class DeletedResponse(msgspec.Struct, frozen=True):
    """That a stored answer is no more."""

    id: str
    object: Literal["response.deleted"]
    deleted: Literal[True]


class InputTokens(msgspec.Struct, frozen=True):
    """How many tokens a request would have the policy read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ItemList(msgspec.Struct, frozen=True):
    """A page of the items that a stored answer went on from."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _TopLogprob(msgspec.Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class _Logprob(_TopLogprob, frozen=True):
    top_logprobs: list[_TopLogprob]


class _OutputText(msgspec.Struct, frozen=True):
    type: Literal["output_text"]
    annotations: list[object]
    logprobs: list[_Logprob]
    text: str


class OutputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text of an answer."""

    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[_OutputText]


class _ReasoningText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reasoning before an answer."""

    id: str
    type: Literal["reasoning"]
    status: Literal["completed", "incomplete"]
    summary: list[object]
    content: list[_ReasoningText]
    encrypted_content: str | msgspec.UnsetType | None = msgspec.UNSET


class OutputCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of an answer."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed"]
    arguments: str
    call_id: str
    name: str


class _MessagesText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _MessagesThinkingText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _MessagesToolUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _MessagesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class MessagesAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer of the Messages API."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: messages_format.StopReason
    stop_sequence: str | None
    stop_details: None
    usage: _MessagesUsage


class MessagesCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many tokens a request of the Messages API would have the policy read."""

    input_tokens: int


def schemas() -> Schemas:
    """Return every schema by its name."""
    chat = _named("Chat", [ChatBody, ChatMessage, ChatTool])
    answers = {**_named("Completion", [Completion]), **_named("Chunk", [Chunk])}
    completions = _named("Completions", [CompletionsBody, completions_format.Completion])
    outputs = [OutputMessage, OutputReasoning, OutputCall]
    responses = _named("Responses", [ResponsesBody, ResponsesTool, ItemFields, *outputs, Settings])
    blocks = [_MessagesText, _MessagesThinkingText, _MessagesToolUse]
    messages = _named(
        "Messages", [*blocks, MessagesBody, CountBody, MessagesAnswer, MessagesCount, MessagesErrorEnvelope]
    )
    shared = _named("", [ErrorEnvelope, Health, Model, ModelList, DeletedResponse, InputTokens, ItemList])
    _describe_chat_checks(chat)
    _describe_completions_checks(completions)
    _describe_responses_checks(responses)
    responses["ResponsesAnswer"] = _answer(responses.pop("ResponsesSettings"))
    _describe_messages_checks(messages)
    return {**chat, **answers, **completions, **responses, **messages, **shared}


def _named(prefix: str, types: Sequence[type]) -> Schemas:
    """Return the schemas of `types` and of what they hold, whose names all begin with `prefix`."""
    _, found = msgspec.json.schema_components(types, schema_hook=_null_schema, ref_template="{name}")

    def rename(name: str) -> str:
        return prefix + name.rpartition(".")[2].lstrip("_").removeprefix(prefix)

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # any JSON
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return reference(rename(value["$ref"]))  # pyright: ignore[reportUnknownArgumentType]  # a name
        return {key: renamed(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]

    assert len(set(map(rename, found))) == len(found), "two schemas of one name"
    return {rename(name): renamed(schema) | {"title": rename(name)} for name, schema in found.items()}


def reference(name: str) -> Schema:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _null_schema(kind: type) -> Schema:
    """Return the schema of a field that must not say anything."""
    if kind is object:
        return dict(NULL)
    raise NotImplementedError


def _narrow(schema: Schema, **limits: Any) -> None:
    """Add `limits` to those of a field's types that they concern."""
    concerned: Mapping[str, str] = {
        "minimum": "number", "maximum": "number", "exclusiveMinimum": "number",
        "minItems": "array", "maxItems": "array", "items": "array", "enum": "string", "minLength": "string",
    }  # fmt: skip
    for kind in schema.get("anyOf", [schema]):
        name = "number" if kind.get("type") == "integer" else kind.get("type")
        kind.update({key: value for key, value in limits.items() if concerned[key] == name})


def _describe_shared_checks(body: Schema, neutral: Mapping[str, tuple[object, ...]], hints: frozenset[str]) -> None:
    given: Schemas = body["properties"]
    _narrow(given["temperature"], minimum=0, maximum=2)
    _narrow(given["top_p"], minimum=0, maximum=1)
    if "tool_choice" in given:
        _narrow(given["top_logprobs"], minimum=0, maximum=MAX_TOP_LOGPROBS)
        _narrow(given["tool_choice"], enum=_CHOICES)
    given.update({name: {"enum": [*values, None]} for name, values in neutral.items()})
    given.update({name: {"description": "Recorded; changes nothing."} for name in sorted(hints)})
    body["additionalProperties"] = False


def _describe_chat_checks(found: Schemas) -> None:
    body = found["ChatBody"]
    given: Schemas = body["properties"]
    _narrow(given["messages"], items=reference("ChatMessage"), minItems=1)
    _narrow(given["tools"], items=reference("ChatTool"))
    _narrow(given["stop"], maxItems=chat_request.MAX_STOP, minLength=1, items={"type": "string", "minLength": 1})
    _narrow(given["n"], minimum=1, maximum=chat_request.MAX_CHOICES)
    _narrow(given["seed"], minimum=-LARGEST_INTEGER - 1, maximum=LARGEST_INTEGER)
    for limit in ("max_tokens", "max_completion_tokens"):
        _narrow(given[limit], minimum=1, maximum=LARGEST_INTEGER)
    _describe_shared_checks(body, chat_request.NEUTRAL, chat_request.HINTS)
    found["ChatPart"] = _variants(found["ChatPart"], "type", _TEXTS)
    found["ChatMessage"] = _variants(found["ChatMessage"], "role", _MESSAGES)
    found["ChatTool"] = _variants(found["ChatTool"], "type", {("function",): ("function",)})


def _describe_completions_checks(found: Schemas) -> None:
    body = found["CompletionsBody"]
    given: Schemas = body["properties"]
    ids: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    texts: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    given["prompt"] = {"anyOf": [{"type": "string"}, texts, ids, {"type": "array", "items": ids, "minItems": 1}, NULL]}
    given["suffix"] = {"enum": ["", None]}
    _narrow(given["stop"], maxItems=chat_request.MAX_STOP, minLength=1, items={"type": "string", "minLength": 1})
    _narrow(given["n"], minimum=1, maximum=chat_request.MAX_CHOICES)
    _narrow(given["best_of"], minimum=1, maximum=chat_request.MAX_CHOICES)
    _narrow(given["logprobs"], minimum=0, maximum=completions_request.MAX_LOGPROBS)
    _narrow(given["max_tokens"], minimum=0, maximum=LARGEST_INTEGER)
    _narrow(given["seed"], minimum=-LARGEST_INTEGER - 1, maximum=LARGEST_INTEGER)
    _describe_shared_checks(body, {}, completions_request.HINTS)


def _describe_responses_checks(found: Schemas) -> None:
    body = found["ResponsesBody"]
    given: Schemas = body["properties"]
    _narrow(given["input"], items=reference("ResponsesItemFields"), minItems=1, minLength=1)
    body["anyOf"] = [
        {"required": [name], "properties": {name: _not_null(given[name])}} for name in ("input", "previous_response_id")
    ]
    _narrow(given["tools"], items=reference("ResponsesTool"))
    _narrow(given["max_output_tokens"], minimum=responses_request.LEAST_OUTPUT_TOKENS, maximum=LARGEST_INTEGER)
    _narrow(given["include"], items={"enum": sorted(responses_request.INCLUDABLE)})
    _describe_shared_checks(body, responses_request.NEUTRAL, responses_request.HINTS)
    found["ResponsesPart"] = _variants(found["ResponsesPart"], "type", _TEXTS_OF_ITEMS)
    found["ResponsesItemFields"] = _variants(found["ResponsesItemFields"], "type", _ITEMS)
    found["ResponsesTool"] = _variants(found["ResponsesTool"], "type", {("function",): ("name",)})


def _describe_messages_checks(found: Schemas) -> None:
    body = found["MessagesBody"]
    given: Schemas = body["properties"]
    _narrow(given["temperature"], minimum=0, maximum=1)
    _narrow(given["top_p"], minimum=0, maximum=1)
    _narrow(given["top_k"], minimum=0)
    _narrow(given["max_tokens"], minimum=1, maximum=LARGEST_INTEGER)
    text = {"type": "string", "pattern": r"\S", "maxLength": messages_request.MAX_STOP_CHARACTERS}
    _narrow(given["stop_sequences"], maxItems=messages_request.MAX_STOP, items=text)
    for name in ("MessagesBody", "MessagesCountBody"):
        properties: Schemas = found[name]["properties"]
        _narrow(properties["messages"], minItems=1)
        properties.update({key: {"enum": [*values, None]} for key, values in messages_request.NEUTRAL.items()})
        properties.update(
            {key: {"description": "Recorded; changes nothing."} for key in sorted(messages_request.HINTS)}
        )
        found[name]["additionalProperties"] = False
    found["MessagesEdit"]["properties"]["type"] = {"type": "string", "pattern": "^clear_thinking_"}
    _narrow(found["MessagesKeptThinking"]["properties"]["value"], minimum=1)
    found["MessagesOutputConfig"]["properties"]["format"] = dict(NULL)
    found["MessagesBlock"]["properties"]["input"] = {"anyOf": [{"type": "object"}, NULL]}
    found["MessagesBlock"] = _variants(found["MessagesBlock"], "type", _BLOCKS)
    found["MessagesTextBlock"] = _variants(found["MessagesTextBlock"], "type", {("text",): ("text",)})
    found["MessagesTool"] = _variants(found["MessagesTool"], "type", {("custom",): ("name", "input_schema")})
    outputs = [reference(f"Messages{kind}") for kind in ("Text", "ThinkingText", "ToolUse")]
    found["MessagesAnswer"]["properties"]["content"]["items"] = {"oneOf": outputs}


def _variants(schema: Schema, field: str, required: Mapping[tuple[str, ...], tuple[str, ...]]) -> Schema:
    """Return a schema that says which fields must be there, and not null, for each kind that `field` may name."""
    kinds: list[Schema] = []
    for kind, names in required.items():
        given: Schemas = schema["properties"] | {field: {"enum": list(kind)}}
        given |= {name: _not_null(given[name]) for name in names}
        if "role" in names:
            given["role"] = {"enum": list(ROLES)}
        kinds.append({"type": "object", "properties": given, "required": [field, *names]})
    return {"title": schema["title"], "description": schema.get("description", ""), "anyOf": kinds}


def _not_null(schema: Schema) -> Schema:
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind != NULL]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _answer(settings: Schema) -> Schema:
    """Return the schema of an answer of Responses: what it repeats of the request, what varies, and the constants."""
    head = Head(id="", created=0, model="", settings=Settings())
    constant = billed(response(head, [], Ending()))
    varying: Schemas = {
        "id": {"type": "string"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": list(get_args(Status))},
        "completed_at": {"type": ["integer", "null"]},
        "error": {"type": ["object", "null"]},
        "incomplete_details": {"type": ["object", "null"]},
        "model": {"type": "string"},
        "output": {
            "type": "array",
            "items": {"oneOf": [reference(f"ResponsesOutput{kind}") for kind in ("Message", "Reasoning", "Call")]},
        },
        "service_tier": {"enum": ["auto", "default"]},
        "usage": {"type": ["object", "null"]},
    }
    repeated = {field.name: settings["properties"][field.name] for field in fields(Settings)}
    properties = {name: {"const": value} for name, value in constant.items()} | repeated | varying
    return {
        "title": "ResponsesAnswer",
        "description": "An answer.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
