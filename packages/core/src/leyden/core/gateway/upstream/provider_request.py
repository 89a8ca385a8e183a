"""Request to a provider through LiteLLM: which fields of an agent's request are passed on, and which are refused.

LiteLLM takes fields of a request and settings of its own, such as `api_base` and `api_key`, in one list of arguments.
Only the fields that are named here reach it, so that no agent can choose where a provider's key is sent.
"""

from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from leyden.core.gateway.chat.format import AnswerHead
from leyden.core.gateway.model_request import UNREADABLE, unreadable
from leyden.core.gateway.refusal import Refusal, invalid, unsupported

PASSED = frozenset({
    "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "n", "parallel_tool_calls",
    "presence_penalty", "response_format", "seed", "stop", "temperature", "thinking", "tool_choice", "tools",
    "top_logprobs", "top_p",
})  # fmt: skip
"""Fields that are passed on, and refused where the provider does not have them."""

HINTS = frozenset({"prediction", "reasoning_effort", "service_tier", "user", "verbosity"})
"""Fields that are passed on where the provider has them, and otherwise left out: a response need not obey them."""

RECORDED_ONLY = frozenset({
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "store",
})  # fmt: skip
"""Fields for OpenAI's own bookkeeping: they are recorded, and not passed on."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "tools": ([],),
}
"""Values, besides null, that have no effect: they are left out where the provider does not have the field."""

_OWN = frozenset({"model", "messages", "stream", "stream_options"})
_REMOTE = ("image_url", "file", "video_url", "input_audio")

Fields = Mapping[str, msgspec.Raw]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ProviderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request."""

    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    """Further arguments for LiteLLM."""
    stream: bool = False
    options: StreamOptions = StreamOptions()

    def head(self, response_id: str, created: int, model: str) -> AnswerHead:
        """Return the fields that every part of the response repeats."""
        return AnswerHead(
            id=response_id,
            created=created,
            model=model,
            include_usage=bool(self.options.include_usage),
            padded=self.options.include_obfuscation is not False,
        )


class _Part(msgspec.Struct, frozen=True):
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def read_request(fields: Fields, supported: Collection[str] | None, provider: str) -> ProviderRequest:
    """Check a request of Chat Completions for a provider that has the fields in `supported`; None: they are not known.

    Raises Refusal, as OpenAI would, for fields that do not exist, that the provider does not have, or that would make
    this machine fetch a file.
    """
    try:
        values: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        part = msgspec.convert(values, _Part)
    except UNREADABLE as error:
        raise unreadable(error) from None
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name in _OWN or name in RECORDED_ONLY or value is None:
            continue
        if name not in PASSED and name not in HINTS and value not in NEUTRAL.get(name, ()):
            raise Refusal(400, f"Unrecognized request argument supplied: {name}", param=name)
        has_field = name in PASSED | HINTS and (supported is None or name in supported)
        if has_field:
            arguments[name] = value
        elif name not in HINTS and value not in NEUTRAL.get(name, ()):
            raise unsupported(name, f"is not supported by the provider {provider}.")
    _check_tools(arguments.get("tools", []))
    messages = _checked_messages(values.get("messages"))
    return ProviderRequest(
        messages=messages, arguments=arguments, stream=bool(part.stream), options=part.stream_options or StreamOptions()
    )


def _check_tools(tools: Any) -> None:
    """Raise Refusal for tools other than functions: LiteLLM would call servers for some of them."""
    if not isinstance(tools, list):
        raise invalid("Invalid type for 'tools': expected an array.", "tools")
    for tool in cast("list[Any]", tools):
        if not isinstance(tool, dict) or cast("dict[str, Any]", tool).get("type") != "function":
            raise unsupported("tools", "must be functions for a model of this provider.")


def _checked_messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise invalid("Missing required parameter: 'messages'.", "messages")
    messages = cast("list[Any]", given)
    for message in messages:
        if not isinstance(message, dict):
            raise invalid("Invalid type for 'messages': expected an array of objects.", "messages")
        content = cast("dict[str, Any]", message).get("content")
        for part in cast("list[Any]", content) if isinstance(content, list) else []:
            _check_part(part)
    return messages


def _check_part(part: Any) -> None:
    """Raise Refusal for a part that names a file by its URL: this machine would fetch it, and not the provider."""
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    for name in _REMOTE:
        found = fields.get(name)
        values = list(cast("dict[str, Any]", found).values()) if isinstance(found, dict) else [found]
        for value in values:
            if isinstance(value, str) and "://" in value[:2000] and not value.startswith("data:"):
                raise invalid(
                    f"'{name}' names a file by its URL, which is not fetched here: send it as a data: URL.", "messages"
                )
