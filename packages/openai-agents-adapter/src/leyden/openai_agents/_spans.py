"""Span conversion: turns the SDK's traces and spans into Leyden's, and into the current caller.

It never raises into the agent, and reads no tokens. Where tracing is off, the SDK makes the same spans of another
class, which reports to no processor. The instrumentor reports both classes, `LeydenTraceProcessor` traced spans only.
The first report of a span counts.
"""

import json
import sys
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from agents.tracing.scope import Scope
from opentelemetry.trace import SpanKind, TracerProvider

from leyden.core.data import semconv
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run, RunTree

WORKFLOW = "Agent workflow"
"""The SDK's default name of a workflow; an untraced one does not have its name."""
UNTRACED = "no-op"
"""Id of every untraced trace and span."""
MASK = "Agent run"
"""Name of the span that hides outer spans from an untraced run; it records nothing itself."""
CHAT = ("generation", "response")


class SpanFailure(Exception):
    """An error that the SDK set on a span without raising it; only recorded, never raised."""


class _Reported(msgspec.Struct, eq=False):
    """State of one of the SDK's traces or spans, besides its `Run`."""

    key: Hashable
    parent: Hashable | None
    active_error: BaseException | None
    """Exception that was handled when it started, which is not its own failure."""
    error: BaseException | None = None
    """Exception that was handled when the SDK set an error on it."""
    unopened: list[Run] = []
    """Workflow that the first span in it opens."""


_RUNS = RunTree("openai_agents")
_reported: WeakKeyDictionary[Any, _Reported] = WeakKeyDictionary()
"""By the SDK's own object."""
_masking: ContextVar[bool] = ContextVar("leyden_openai_agents_masking", default=False)


@quietly
def trace_started(trace: Any, provider: TracerProvider | None) -> None:
    """Open a workflow: all runs under one trace belong to it. A trace that hides another is none."""
    traced = trace.trace_id != UNTRACED
    above = None if traced else _above()
    run = _begin(trace, trace.trace_id if traced else object(), above, "trace")
    if run is None or above is not None:
        return
    if traced or not _masking.get():
        _RUNS.open_workflow(run, trace.name if traced else WORKFLOW, provider=provider)
    else:
        _reported[trace].unopened.append(run)


@quietly
def span_started(span: Any, provider: TracerProvider | None) -> None:
    """Open the run of `span`: an agent, model call, tool, guardrail, or span of the user's; or nothing."""
    data = span.span_data
    if span.span_id != UNTRACED:
        run = _begin(span, span.span_id, span.parent_id or span.trace_id, data.type)
    elif data.type == "custom" and data.name == MASK:
        _hide(span)
        return
    else:
        above = _above()
        while above is not None and above.unopened:
            _RUNS.open_workflow(above.unopened.pop(), WORKFLOW, provider=provider)
        run = _begin(span, object(), above, data.type)
    if run is None:
        return
    if data.type == "agent":
        _RUNS.open_agent(run, data.name, provider=provider)
    elif data.type in CHAT:
        _open_chat(run, data, provider)
    elif data.type == "function":
        _RUNS.open_tool(run, data.name, provider=provider)
    elif data.type == "guardrail":
        _RUNS.open(run, f"guardrail {data.name}", {semconv.OPERATION: semconv.GUARDRAIL}, provider=provider)
    elif data.type == "custom":
        _RUNS.open(run, data.name, {}, provider=provider)


@quietly
def error_set(span: Any) -> None:
    """Keep the exception that is being handled while the SDK sets an error on `span`."""
    reported, raised = _reported.get(span), sys.exception()
    if reported is not None and raised is not reported.active_error:
        reported.error = raised


@quietly
def ended(item: Any, provider: TracerProvider | None) -> None:
    """End a trace or span, as failed if an exception leaves it or the SDK set an error on it."""
    reported = _reported.pop(item, None)
    if reported is None:
        return
    data = getattr(item, "span_data", None)
    _RUNS.end(reported.key, _failure(reported, item), {} if data is None else _end_attributes(data))
    if data is not None and data.type == "handoff" and data.to_agent:
        _RUNS.handoff(reported.parent, data.from_agent, data.to_agent, provider=provider)


def masking(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """Wrap the start of a run's own trace: an untraced one may only exist to hide others for a moment."""
    token = _masking.set(True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        _masking.reset(token)


def _hide(span: Any) -> None:
    """Attach runs below a mask to what it hides; a mask that hides nothing precedes its run's trace."""
    above = _above()
    if above is not None and _begin(span, object(), above, MASK) is not None:
        _reported[span].unopened = above.unopened


def _above() -> _Reported | None:
    """Return the current span or trace of this context: untraced ones do not have their parent."""
    for current in (Scope.get_current_span(), Scope.get_current_trace()):
        if current is not None and (reported := _reported.get(current)) is not None:
            return reported
    return None


def _begin(started: Any, key: Hashable, parent: Hashable | _Reported | None, name: str) -> Run | None:
    above = parent.key if isinstance(parent, _Reported) else parent
    reported = _Reported(key, above, sys.exception())
    return _RUNS.start(key, above, name) if _reported.setdefault(started, reported) is reported else None


def _open_chat(run: Run, data: Any, provider: TracerProvider | None) -> None:
    """Open a model call; only a Chat Completions call has its model at the start."""
    model: str | None = getattr(data, "model", None)
    config: Mapping[str, Any] = getattr(data, "model_config", None) or {}
    attributes = {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: config.get("model_impl", "openai"),
        semconv.REQUEST_MODEL: model,
    }
    _RUNS.open(run, f"chat {model}" if model else "chat", attributes, provider=provider, kind=SpanKind.CLIENT)


def _failure(reported: _Reported, item: Any) -> BaseException | None:
    """Return the failure: the handled error, else the exception that leaves it, else the SDK's error."""
    if reported.error is not None:
        return reported.error
    raised = sys.exception()
    if raised is not None and raised is not reported.active_error:
        return None if isinstance(raised, GeneratorExit) else raised
    sdk_error: Mapping[str, Any] | None = getattr(item, "error", None)
    if sdk_error is None:
        return None
    details: Mapping[str, Any] = sdk_error.get("data") or {}
    return SpanFailure(f"{sdk_error['message']}: {details['error']}" if "error" in details else sdk_error["message"])


def _end_attributes(data: Any) -> dict[str, Any]:
    """Return the attributes that a span has only at its end."""
    if data.type == "function":
        return {semconv.TOOL_ARGUMENTS: data.input, semconv.TOOL_RESULT: _text(data.output)}
    if data.type == "guardrail":
        return {semconv.GUARDRAIL_TRIGGERED: bool(data.triggered)}
    if data.type not in CHAT:
        return {}
    response: Any = getattr(data, "response", None)
    usage: Mapping[str, Any] = getattr(data, "usage", None) or {}
    return {
        semconv.RESPONSE_ID: getattr(response, "id", None),
        semconv.RESPONSE_MODEL: getattr(response, "model", None),
        semconv.INPUT_TOKENS: usage.get("input_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
    }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)
