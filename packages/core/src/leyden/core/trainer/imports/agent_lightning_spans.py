"""Conversion of what Agent Lightning 0.3 stores: spans, with their rewards and model calls, and resources.

Nothing of a span is left out. A reward also gets the attributes under which Leyden reads it. A model call whose
messages were recorded also gets the record of a call that another model answered. Such a call can be imitated (SFT,
DPO), and is never trained as the policy's own, because no gateway of Leyden recorded its tokens.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from leyden.core.data import semconv
from leyden.core.data.reasons import UPSTREAM
from leyden.core.data.resources import ENGINES, LLM, NamedResources, PromptTemplate
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus, StatusCode
from leyden.core.store.provenance import without_call_records
from leyden.core.trainer.imports.agent_lightning_server import SourceEvent, SourceLink, SourceResources, SourceSpan

OWN_NAME = "agentlightning.span.name"
"""Attribute with the name that a reward span had in Agent Lightning."""
OWN_SPAN_ID, OWN_TRACE_ID = "agentlightning.span.id", "agentlightning.trace.id"
"""Attributes with ids that are not those of OpenTelemetry, and that were replaced."""
SCHEMA_URL, TRACE_STATE = "agentlightning.resource.schema_url", "agentlightning.trace_state"
_REWARD = "agentlightning.reward."
_ANNOTATION = "agentlightning.annotation"
_PROMPT, _COMPLETION, _FUNCTIONS = "gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request.functions."
_SPAN_ID, _TRACE_ID = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{32}")


async def convert_spans(given: list[SourceSpan], attempt_id: str, counts: Counter[str]) -> list[Span]:
    """Return spans for the attempt `attempt_id` of a Leyden store; `counts` receives what could not be kept as it is.

    Of several spans with the same response id, only the first gets the record of a call: a proxy and a tracer may both
    have recorded it.
    """
    spans = await without_call_records([_span(one, attempt_id, counts) for one in given])
    counts["attributes removed that only Leyden's gateway may set"] += sum(
        len(cast("list[str]", span.attributes.get(semconv.FORGED, []))) for span in spans
    )
    seen = set[str]()
    return [_with_call(_with_reward(span), seen) for span in spans]


def _span(given: SourceSpan, attempt_id: str, counts: Counter[str]) -> Span:
    attributes = _plain(given.attributes)
    if given.resource.schema_url:
        attributes[SCHEMA_URL] = given.resource.schema_url
    if given.context is not None and given.context.trace_state:
        attributes[TRACE_STATE] = msgspec.json.encode(given.context.trace_state).decode()
    span_id, trace_id, parent_id = given.span_id, given.trace_id, given.parent_id
    if not _SPAN_ID.fullmatch(span_id) or not _TRACE_ID.fullmatch(trace_id):
        attributes |= {OWN_SPAN_ID: span_id, OWN_TRACE_ID: trace_id}
        counts["spans whose ids are not OpenTelemetry's, replaced by hashes"] += 1
    start = given.start_time if given.start_time is not None else given.end_time
    if start is None:
        counts["spans without a time, which are at 0"] += 1
    return Span(
        rollout_id=given.rollout_id,
        attempt_id=attempt_id,
        sequence_id=given.sequence_id,
        trace_id=_id(trace_id, _TRACE_ID, 32),
        span_id=_id(span_id, _SPAN_ID, 16),
        parent_id=None if not parent_id else _id(parent_id, _SPAN_ID, 16),
        name=given.name,
        status=SpanStatus(code=_CODES[given.status.status_code], description=given.status.description),
        attributes=attributes,
        events=[_event(event, start or 0.0) for event in given.events],
        links=[_link(link) for link in given.links],
        start_time=start or 0.0,
        end_time=given.end_time,
        resource=_plain(given.resource.attributes),
    )


_CODES: dict[str, StatusCode] = {"UNSET": "unset", "OK": "ok", "ERROR": "error"}


def _event(given: SourceEvent, start: float) -> SpanEvent:
    time = start if given.timestamp is None else given.timestamp
    return SpanEvent(name=given.name, time=time, attributes=_plain(given.attributes))


def _link(given: SourceLink) -> SpanLink:
    return SpanLink(
        trace_id=_id(given.context.trace_id, _TRACE_ID, 32),
        span_id=_id(given.context.span_id, _SPAN_ID, 16),
        attributes=_plain(given.attributes or {}),
    )


def _id(given: str, form: re.Pattern[str], digits: int) -> str:
    return given if form.fullmatch(given) else hashlib.sha256(given.encode()).hexdigest()[:digits]


def _plain(given: Mapping[str, Any]) -> Attributes:
    """Return attributes as a span can hold them: what is neither a value nor a list of values becomes JSON."""
    return {name: _value(value) for name, value in given.items() if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        items = cast("list[object]", value)
        if len({type(item) for item in items}) <= 1 and all(
            isinstance(item, str | bool | int | float) for item in items
        ):
            return items
    return msgspec.json.encode(value).decode()


# --- Rewards


def _with_reward(span: Span) -> Span:
    """Return a reward span with the name and attributes of Leyden's; any other span unchanged."""
    dimensions = read_reward(span)
    if not dimensions:
        return span
    value = next(iter(dimensions.values()))
    named = dimensions if list(dimensions) != ["primary"] else {}
    return msgspec.structs.replace(
        span,
        name=semconv.REWARD,
        attributes={
            **span.attributes,
            OWN_NAME: span.name,
            semconv.REWARD_VALUE: value,
            **{f"{semconv.REWARD_DIMENSION}{name}": number for name, number in named.items()},
        },
    )


def read_reward(span: Span) -> dict[str, float]:
    """Return the reward of a span by its dimensions, the primary one first; empty for any other span.

    These are the three forms that `agentlightning.get_reward_value` reads.
    """
    entries = _indexed(span.attributes, _REWARD)
    found = {str(entry.get("name", "primary")): entry.get("value") for entry in entries}
    if not found:
        for key in ("agentops.task.output", "agentops.entity.output"):
            output = _json(span.attributes.get(key))
            if isinstance(output, dict) and cast("dict[str, Any]", output).get("type") == "reward":
                found = {"primary": cast("dict[str, Any]", output).get("value")}
                break
    if not found and span.name == _ANNOTATION and "reward" in span.attributes:
        found = {"primary": span.attributes["reward"]}
    numbers = {name: _number(value) for name, value in found.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


# --- Model calls


def _with_call(span: Span, seen: set[str]) -> Span:
    """Return a span of a model call with the record of a call that another model answered.

    `seen` has the ids of responses that earlier spans recorded. Spans without messages are unchanged, and so are those
    from which an attribute of Leyden's gateway was removed.
    """
    messages = [_message(entry) for entry in _indexed(span.attributes, _PROMPT)]
    answers = [_message(entry) for entry in _indexed(span.attributes, _COMPLETION)]
    if not messages or not answers or semconv.FORGED in span.attributes:
        return span
    response_id = span.text(semconv.RESPONSE_ID)
    if response_id is not None and response_id in seen:
        return span
    if response_id is not None:
        seen.add(response_id)
    tools = [_tool(entry) for entry in _indexed(span.attributes, _FUNCTIONS)]
    reasons = [entry.get("finish_reason") for entry in _indexed(span.attributes, _COMPLETION)]
    record: dict[str, Any] = {
        semconv.OPERATION: span.attributes.get(semconv.OPERATION, semconv.MODEL_CALLS[0]),
        semconv.DIALECT: "chat",
        semconv.NOT_TRAINED: UPSTREAM,
        semconv.INPUT_MESSAGES: msgspec.json.encode(messages).decode(),
        semconv.OUTPUT_MESSAGES: msgspec.json.encode(answers).decode(),
        semconv.FINISH_REASONS: [str(reason) for reason in reasons if reason] or None,
        semconv.TOOL_DEFINITIONS: msgspec.json.encode(tools).decode() if tools else None,
    }
    known: dict[str, Any] = {name: value for name, value in record.items() if value is not None}
    return msgspec.structs.replace(span, attributes={**span.attributes, **known})


def _message(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form of Chat Completions."""
    message: dict[str, Any] = {"role": entry.get("role", "assistant"), "content": entry.get("content")}
    if "tool_call_id" in entry:
        message["tool_call_id"] = entry["tool_call_id"]
    calls = [
        {
            "id": call.get("id", ""),
            "type": "function",
            "function": {"name": call.get("name", ""), "arguments": call.get("arguments", "{}")},
        }
        for call in _indexed(entry, "tool_calls.")
    ]
    return {**message, "tool_calls": calls} if calls else message


def _tool(entry: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _json(entry.get("parameters"))
    function = {"name": entry.get("name", ""), "description": entry.get("description", "")}
    return {"type": "function", "function": function | ({} if parameters is None else {"parameters": parameters})}


def _indexed(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the entries of a list that attributes hold as PREFIX + index + . + name, in the order of their index."""
    entries: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            index, _, name = key.removeprefix(prefix).partition(".")
            if index.isdecimal() and name:
                entries.setdefault(int(index), {})[name] = value
    return [entries[index] for index in sorted(entries)]


def _json(value: object) -> object:
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.MsgspecError, RecursionError):
        return None


# --- Resources


def convert_resources(given: SourceResources, counts: Counter[str]) -> NamedResources:
    """Return resources; `counts` receives those that Leyden has no counterpart of, and keys, which are left out."""
    named: NamedResources = {}
    for name, resource in given.resources.items():
        kind = resource.get("resource_type")
        if kind in ("llm", "proxy_llm"):
            counts["API keys of LLMs, left out"] += bool(resource.get("api_key"))
            counts["LLMs of a proxy, imported as LLMs"] += kind == "proxy_llm"
            named[name] = LLM(
                endpoint=str(resource.get("endpoint", "")),
                model=str(resource.get("model", "")),
                sampling_parameters=dict(resource.get("sampling_parameters") or {}),
            )
        elif kind == "prompt_template" and resource.get("engine") in ENGINES:
            named[name] = PromptTemplate(template=str(resource.get("template", "")), engine=resource["engine"])
        else:
            engine = f" with the engine {resource.get('engine')}" if kind == "prompt_template" else ""
            counts[f"resources of the kind {kind}{engine}, left out"] += 1
    return named
