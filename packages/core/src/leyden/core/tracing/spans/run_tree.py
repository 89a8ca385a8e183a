"""Run tree: records a framework's runs as OpenTelemetry spans, connected by the framework's own run ids.

A run may have no span, such as a step of a chain. Spans below it then become children of the nearest run above that has
one. A run that two handlers report is recorded once.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeGuard

import msgspec
from opentelemetry import trace

from leyden.core.data import semconv
from leyden.core.data.plain.own_methods import short_name
from leyden.core.data.plain.values import message_of
from leyden.core.tracing.context import Caller, OpenAttempt, current_attempt, current_caller, not_ended, set_caller
from leyden.core.tracing.production.capture import Capture, root_agent
from leyden.core.tracing.spans.export import may_be_parent, may_export_content, start_span
from leyden.core.tracing.spans.lightweight_spans import LightweightSpan, ids

LIVE_LIMIT = 4096
"""Number of live runs above which those of closed attempts, whose end was never reported, are forgotten."""


class ToolFailure(Exception):
    """An error that a tool returned instead of raising it. It is only recorded, never raised."""


class Run(msgspec.Struct, eq=False):
    """One run of a framework."""

    parent: "Run | None"
    name: str
    agent: str | None
    """Agent of the nearest run above that is an agent, or of this run."""
    node: str | None
    started: int
    """Unix nanoseconds."""
    attempt: OpenAttempt | None
    span: trace.Span | None = None
    record: LightweightSpan | None = None
    """The run's span for Leyden's store in a capture, where `span` is exported to another place or nowhere."""
    caller: Caller | None = None
    capture: Capture | None = None
    """In production, the rollout around the run."""
    exports_content: bool = True
    by_shape: bool = False
    """Whether it counts as an agent only by its structure. If agents start below it, it becomes a workflow."""
    has_ended: bool = False
    stopped: list["tuple[Run, BaseException, int]"] = []
    """Runs below whose spans end with this run's span, with their error and end time.

    The error counts only if this run fails.
    """

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the spans. Content of messages is left out of `span` unless it may be exported."""
        if self.record is not None:
            self.record.set_attributes(_exported_attributes(attributes, with_content=True))
        if self.span is not None and (exported := _exported_attributes(attributes, self.exports_content)):
            self.span.set_attributes(exported)

    def close(self, error: BaseException | None, ended: int | None = None) -> None:
        """End the spans, as failed if there is an `error`. `ended` is in Unix nanoseconds; None means now."""
        for below, its_error, its_end in self.stopped:
            below.close(None if error is None else its_error, its_end)
        for span, exports_content in ((self.record, True), (self.span, self.exports_content)):
            if span is None:
                continue
            if error is not None:
                span.set_attribute(semconv.ERROR_TYPE, short_name(error))
                span.set_status(trace.StatusCode.ERROR, message_of(error) if exports_content else None)
            span.end(ended)

    def visible(self) -> "Run | None":
        """Return the nearest run, this one or above, that has a span."""
        run: Run | None = self
        while run is not None and run.span is None:
            run = run.parent
        return run


class RunTree:
    """Live runs of one framework in this process. Safe to use from any thread."""

    def __init__(self, framework: str, body: Callable[[], Hashable | None] | None = None) -> None:
        """`body` returns the key of the run in whose body this context executes, if the framework provides that.

        A root then has another root of the framework as parent only inside that root's body. Otherwise it is a sibling.
        """
        self._framework = framework
        self._body = body
        self._live: dict[Hashable, Run] = {}

    def start(self, key: Hashable, parent: Hashable | None, name: str, node: str | None = None) -> Run | None:
        """Record the start of a run, without a span yet. Returns None when the run is already recorded."""
        if key in self._live:
            return None
        if len(self._live) > LIVE_LIMIT:
            self._forget_closed()
        above = self._live.get(parent)
        self._return_to(above)
        agent = None if above is None else above.agent
        run = self._live[key] = Run(above, name, agent, node, time.time_ns(), current_attempt())
        return run

    def find(self, key: Hashable) -> Run | None:
        """Return a live run, or None."""
        return self._live.get(key)

    def open(
        self,
        run: Run,
        title: str,
        attributes: Mapping[str, Any],
        *,
        provider: trace.TracerProvider | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
    ) -> None:
        """Start a span for `run` and set `run` as this context's caller. Attributes that are None are left out."""
        above = None if run.parent is None else run.parent.visible()
        current, outer = trace.get_current_span(), self._outer(run)
        above = None if above is None or self._is_in_other_framework(above) else above
        under = _root_parent(current, outer, provider) if above is None else above.span
        run.exports_content = may_export_content(provider)
        base: dict[str, Any] = {semconv.FRAMEWORK: self._framework}
        if run.agent is not None:
            base[semconv.AGENT_NAME] = run.agent
        if run.node is not None:
            base[semconv.NODE] = run.node
        exported = base | _exported_attributes(attributes, run.exports_content)
        run.span = start_span(title, under, exported, started=run.started, kind=kind, given=provider)
        run.record = _make_record(
            run, title, above, base | _exported_attributes(attributes, with_content=True), under, outer
        )
        trace_id, span_id = ids(run.record or run.span)
        run.caller = Caller(
            agent=run.agent,
            node=run.node,
            trace_id=trace_id,
            span_id=span_id,
            framework=self._framework,
            outer=outer,
            is_root=run.parent is None,
            otel_span_id=current.get_span_context().span_id,
        )
        set_caller(run.caller)

    def open_agent(
        self,
        run: Run,
        agent: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        provider: trace.TracerProvider | None = None,
    ) -> None:
        """Start an agent's span for `run`. Runs that start below it from now on belong to `agent`.

        In production a root's span gets a rollout of its own around it, if the environment enables that.
        """
        run.agent = agent
        self._capture(run, agent)
        known = {semconv.OPERATION: "invoke_agent", **(attributes or {})}
        self.open(run, f"invoke_agent {agent}", known, provider=provider)

    def open_workflow(self, run: Run, name: str, *, provider: trace.TracerProvider | None = None) -> None:
        """Start the span of a workflow (a team, a crew), which is no agent. A root is captured like an agent."""
        self._capture(run, name)
        known = {semconv.OPERATION: "invoke_workflow", semconv.WORKFLOW_NAME: name}
        self.open(run, f"invoke_workflow {name}", known, provider=provider)

    def hold_agents(self, run: Run) -> None:
        """Record that an agent starts below `run`.

        Runs above that counted as agents by their structure become workflows.
        """
        above: Run | None = run
        while above is not None:
            if above.by_shape and above.span is not None:
                above.by_shape, name = False, str(above.agent)
                for span in filter(None, (above.span, above.record)):
                    span.update_name(f"invoke_workflow {name}")
                above.note({semconv.OPERATION: "invoke_workflow", semconv.WORKFLOW_NAME: name})
            above = above.parent

    def open_tool(
        self,
        run: Run,
        name: str,
        *,
        call_id: str | None = None,
        arguments: str | None = None,
        provider: trace.TracerProvider | None = None,
    ) -> None:
        """Start the span of a tool. `arguments` is JSON."""
        known = {
            semconv.OPERATION: "execute_tool",
            semconv.TOOL_NAME: name,
            semconv.TOOL_CALL_ID: call_id,
            semconv.TOOL_ARGUMENTS: arguments,
        }
        self.open(run, f"execute_tool {name}", known, provider=provider)

    def handoff(
        self, parent: Hashable | None, source: str, target: str, *, provider: trace.TracerProvider | None = None
    ) -> None:
        """Record a handoff from `source` to `target` below the run `parent`.

        It has no duration and leaves the caller as it is.
        """
        caller, key = current_caller(), object()
        run = self.start(key, parent, "handoff")
        if run is not None:
            known = {semconv.OPERATION: semconv.HANDOFF, semconv.HANDOFF_FROM: source, semconv.HANDOFF_TO: target}
            self.open(run, f"handoff {target}", known, provider=provider)
            self.end(key)
            set_caller(caller)

    def end(
        self, key: Hashable, error: BaseException | None = None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """End a run, as failed if there is an `error`. A run that is not live has already ended."""
        run = self._pop(key)
        if run is None:
            return
        if attributes:
            run.note(attributes)
        run.close(error)
        if run.capture is not None:
            run.capture.__exit__(None if error is None else type(error), error, None)

    def stop(self, key: Hashable, error: BaseException) -> None:
        """End a run that the run above it stopped.

        It counts as failed if the run above fails, so its spans end together with that run's spans.
        """
        above = None if (run := self._live.get(key)) is None else run.parent
        if run is None or above is None or above.has_ended:
            self.end(key, error)
        elif self._pop(key) is not None:
            above.stopped.append((run, error, time.time_ns()))

    def _pop(self, key: Hashable) -> Run | None:
        run = self._live.pop(key, None)
        if run is not None:
            run.has_ended = True
            if run.caller is not None:
                run.caller.ended.set()
        return run

    def _outer(self, run: Run) -> Caller | None:
        """Return the caller around `run`.

        A sibling root that has not ended may still be this context's caller. It is skipped.
        """
        caller = current_caller()
        if self._body is None or run.parent is not None:
            return caller
        enclosing = self._live.get(self._body())
        while enclosing is not None and enclosing.parent is not None:
            enclosing = enclosing.parent
        while self._is_root(caller) and (enclosing is None or caller is not enclosing.caller):
            caller = not_ended(caller.outer)
        return caller

    def _return_to(self, above: Run | None) -> None:
        """Set the run `above` as caller where a sibling root is this context's caller.

        The framework has continued with `above` in this context.
        """
        above = None if self._body is None or above is None else above.visible()
        caller = current_caller()
        if above is None or above.caller is None or above.caller.ended.is_set() or not self._is_root(caller):
            return
        if not _is_within(caller, above.caller):
            set_caller(above.caller)

    def _is_root(self, caller: Caller | None) -> TypeGuard[Caller]:
        return caller is not None and caller.is_root and caller.framework == self._framework

    def _is_in_other_framework(self, run: Run) -> bool:
        """Return whether another framework, called from within `run`, is this context's caller.

        It is nearer than `run`.
        """
        caller = current_caller()
        if caller is None or caller.framework in (None, self._framework):
            return False
        return _is_within(caller, run.caller)

    def _capture(self, run: Run, name: str) -> None:
        if run.parent is None and run.attempt is None:  # inside an attempt no other rollout is opened
            run.capture = root_agent(name)
            run.capture.__enter__()
            run.attempt = current_attempt()

    def _forget_closed(self) -> None:
        for key, run in list(self._live.items()):
            if run.attempt is not None and run.attempt.closed.is_set():
                self._live.pop(key, None)


def _exported_attributes(attributes: Mapping[str, Any], with_content: bool) -> dict[str, Any]:
    """Return the attributes that have a value, without content of messages unless `with_content`."""
    if with_content:
        return {name: value for name, value in attributes.items() if value is not None}
    hidden = semconv.CONTENT_ATTRIBUTES
    return {name: value for name, value in attributes.items() if value is not None and name not in hidden}


def _is_within(caller: Caller | None, other: Caller | None) -> bool:
    """Return whether `caller` is `other`, or is nested in it."""
    while caller is not None and caller is not other:
        caller = caller.outer
    return caller is not None


def _root_parent(
    current: trace.Span, caller: Caller | None, provider: trace.TracerProvider | None
) -> trace.Span | None:
    """Return the parent of a root: the current span or the span of `caller`, which may belong to another framework.

    The newer of the two applies. A framework that sets a caller need not make its span the current one.
    """
    context = current.get_span_context()
    newer = caller is None or caller.span_id is None or context.span_id != caller.otel_span_id
    if context.is_valid and newer and may_be_parent(current, provider):
        return current
    return _as_span(caller)


def _make_record(
    run: Run,
    title: str,
    above: Run | None,
    attributes: Mapping[str, Any],
    under: trace.Span | None,
    caller: Caller | None,
) -> LightweightSpan | None:
    """Return the span of `run` for Leyden's store, in an attempt whose spans no recorder collects. Else None.

    It has the ids of the exported span where there is one. Its parent is always a span that Leyden stores.
    """
    attempt = current_attempt()
    if attempt is None or attempt.keep is None or run.span is None:
        return None
    parent = _as_span(caller) if above is None else above.record
    record = LightweightSpan(title, parent, attributes, run.started, attempt.keep)
    exported = run.span.get_span_context()
    # Without an SDK, OpenTelemetry returns the parent span again.
    if exported.is_valid and (under is None or exported.span_id != under.get_span_context().span_id):
        record.trace_id, record.span_id = f"{exported.trace_id:032x}", f"{exported.span_id:016x}"
    return record


def _as_span(caller: Caller | None) -> trace.Span | None:
    """Return the caller's span, for use as a parent. None where it has none."""
    if caller is None or caller.trace_id is None or caller.span_id is None:
        return None
    sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    remote = trace.SpanContext(int(caller.trace_id, 16), int(caller.span_id, 16), False, sampled)
    return trace.NonRecordingSpan(remote)
