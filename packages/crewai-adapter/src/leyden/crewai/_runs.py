"""Run tracking: turns CrewAI's events into spans and into the current caller.

It never raises into the agent, and reads no tokens. CrewAI's own pairing of ends with starts is unreliable: it reports
a failed call twice, and the second report closes another run. It never reports the end of a LiteLLM call that ends in a
tool call. So this module keeps starts by context, and checks that an end matches its start. A run that ends also ends
what is open below it.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import SpanKind, TracerProvider

from leyden.core.data import semconv
from leyden.core.tracing.context import is_left_over
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run, RunTree

AGENT, CALL, CREW, FLOW, METHOD, TASK, TOOL = "agent", "call", "crew", "flow", "method", "task", "tool"
DELEGATION = ("delegate_work_to_coworker", "ask_question_to_coworker")
"""CrewAI's own tools with which an agent delegates work to another."""


class Reported(Exception):
    """A failure that CrewAI reported as text, or a tool's failure result; only recorded, never raised."""


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run that has started and was not reported as ended."""

    key: str
    kind: str
    identity: Hashable
    """Key that an end of this kind shares with its start."""
    source: Any
    above: "OpenRun | None"
    agent: str | None = None
    node: str | None = None
    tool: str | None = None
    below: set["OpenRun"] = field(default_factory=set["OpenRun"])
    ended: bool = False

    @property
    def siblings(self) -> set["OpenRun"]:
        """Return the runs beside it, and itself while it is open."""
        return _roots if self.above is None else self.above.below


_TREE = RunTree("crewai")
_innermost: ContextVar[OpenRun | None] = ContextVar("leyden_crewai_innermost", default=None)
_block_runs: ContextVar[set[OpenRun] | None] = ContextVar("leyden_crewai_within", default=None)
_roots: set[OpenRun] = set()


@contextmanager
def ends_with_block() -> Generator[None]:
    """End, when the block is left, what began in it, in any thread: CrewAI reports no cancellations."""
    began: set[OpenRun] = set()
    token = _block_runs.set(began)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        _block_runs.reset(token)
        for root in list(began):
            _end(root, error)


def end_all() -> None:
    """End every run, because no later end will be reported."""
    for root in list(_roots):
        _end(root, None)


@quietly
def begin(source: Any, event: Any, provider: TracerProvider | None) -> None:
    """Record what starts with `event`, if anything, and make it this context's caller."""
    if event.type not in _STARTS or is_left_over():
        return
    kind, open_span = _STARTS[event.type]
    if kind in (FLOW, METHOD) and getattr(source, "is_crewai_internal", False):
        return  # an agent's own loop is built as a flow
    identity = _identity(kind, source, event)
    above = _above(kind, identity, source)
    if kind == AGENT and above is not None and above.tool in DELEGATION:
        _TREE.handoff(above.key, above.agent or "", _role(source), provider=provider)
    found = OpenRun(event.event_id, kind, identity, source, above)
    if above is not None:
        found.agent, found.node = above.agent, above.node
    run = _TREE.start(found.key, None if above is None else above.key, kind, found.node)
    if run is not None:
        found.siblings.add(found)
        if above is None:
            _end_with_owner(found)
        _innermost.set(found)
        open_span(found, run, event, provider)


@quietly
def end(source: Any, event: Any) -> None:
    """Record what ends with `event`, if it is known and has not ended before."""
    kind = _ENDS.get(event.type)
    if kind is None or (found := _open(kind, _identity(kind, source, event))) is None:
        return
    attributes = _end_attributes(kind, event)
    _innermost.set(found.above)
    _end(found, _failure(event), attributes)


def _end_with_owner(root: OpenRun) -> None:
    """End `root` with what began it: an adapter's run, else the event loop task it began in."""
    began = _block_runs.get()
    if began is not None:
        began.add(root)
        return
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop: the thread that began it ends it
        return
    if task is not None:
        task.add_done_callback(lambda done: _end_with_task(root, done))


@quietly
def _end_with_task(root: OpenRun, task: "asyncio.Task[Any]") -> None:
    if not root.ended:
        _end(root, asyncio.CancelledError() if task.cancelled() else task.exception())


def _identity(kind: str, source: Any, event: Any) -> Hashable:
    if kind == CALL:
        return event.call_id
    if kind == TOOL:
        return None
    return id(source), id(getattr(event, "task", None)), getattr(event, "method_name", None)


def _innermost_open() -> OpenRun | None:
    found = _innermost.get()
    while found is not None and found.ended:
        found = found.above
    return found


def _open(kind: str, identity: Hashable) -> OpenRun | None:
    found = _innermost_open()
    while found is not None and (found.ended or (found.kind, found.identity) != (kind, identity)):
        found = found.above
    return found


def _above(kind: str, identity: Hashable, source: Any) -> OpenRun | None:
    """Return the run that a start is below, after ending runs that the start proves ended."""
    above = _innermost_open()
    if above is not None and above.kind == CALL and above.source is not source:
        _end(above, None)  # only a tool that the model's own client runs is inside a call
        above = _innermost_open()
    if kind == AGENT and (earlier := _open(kind, identity)) is not None:
        _end(earlier, sys.exception())
        return earlier.above
    if above is not None and above.kind == AGENT and kind in (CALL, TOOL):
        for call in [run for run in list(above.below) if run.kind == CALL and getattr(run.source, "is_litellm", False)]:
            _end(call, None)
    return above


def _end(found: OpenRun, error: BaseException | None, attributes: Mapping[str, Any] | None = None) -> None:
    if found.ended:
        return
    found.ended = True
    found.siblings.discard(found)
    for below in list(found.below):
        _end(below, error)
    _TREE.end(found.key, error, attributes)


def _failure(event: Any) -> BaseException | None:
    """Return the failure as an exception: CrewAI often reports only its text, while it is being handled."""
    error = getattr(event, "error", None)
    if error is None:
        failure = getattr(event, "failure", None)
        return None if failure is None else Reported(str(failure.message))
    return error if isinstance(error, BaseException) else sys.exception() or Reported(str(error))


# --- What each start opens


def _open_crew(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    _TREE.open_workflow(run, event.crew_name or "crew", provider=provider)


def _open_flow(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    _TREE.open_workflow(run, event.flow_name, provider=provider)


def _open_node(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    """Open a flow's method or a named task; an unnamed task's description is message content."""
    name = found.source.name if found.kind == TASK else event.method_name
    if name:
        run.node = found.node = found.node or name
        _TREE.open(run, f"node {name}", {}, provider=provider)


def _open_agent(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    found.agent = _role(found.source)
    _TREE.open_agent(run, found.agent, {semconv.AGENT_ID: str(found.source.id)}, provider=provider)


def _open_call(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    run.agent = found.agent = event.agent_role.strip() if event.agent_role else found.agent or _agent_of_task(found)
    attributes = {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: getattr(found.source, "provider", None),
        semconv.REQUEST_MODEL: event.model,
        semconv.REQUEST_STREAM: event.stream,
    }
    _TREE.open(run, f"chat {event.model}", attributes, provider=provider, kind=SpanKind.CLIENT)


def _open_tool(found: OpenRun, run: Run, event: Any, provider: TracerProvider | None) -> None:
    found.tool = event.tool_name.lower().replace(" ", "_")
    _TREE.open_tool(run, event.tool_name, arguments=_text(event.tool_args), provider=provider)


def _end_attributes(kind: str, event: Any) -> dict[str, Any]:
    """Return the attributes of an answer or a tool result that CrewAI has; the gateway's record has the rest."""
    if kind == TOOL:
        return {semconv.TOOL_RESULT: _text(output) if (output := getattr(event, "output", None)) is not None else None}
    if kind != CALL:
        return {}
    usage: dict[str, Any] = getattr(event, "usage", None) or {}
    reason = getattr(event, "finish_reason", None)
    return {
        semconv.RESPONSE_ID: getattr(event, "response_id", None),
        semconv.FINISH_REASONS: None if reason is None else [reason],
        semconv.INPUT_TOKENS: usage.get("prompt_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("completion_tokens"),
    }


def _agent_of_task(found: OpenRun) -> str | None:
    """Return the agent of the task around `found`, for what happens before CrewAI reports its start.

    Examples are the model calls that make a query for the knowledge or the memory out of the task.
    """
    above = found.above
    while above is not None and above.kind != TASK:
        above = above.above
    agent = None if above is None else above.source.agent
    return None if agent is None else _role(agent)


def _role(agent: Any) -> str:
    return agent.role.strip()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


_STARTS: dict[str, tuple[str, Callable[[OpenRun, Run, Any, TracerProvider | None], None]]] = {
    "crew_kickoff_started": (CREW, _open_crew),
    "flow_started": (FLOW, _open_flow),
    "method_execution_started": (METHOD, _open_node),
    "task_started": (TASK, _open_node),
    "agent_execution_started": (AGENT, _open_agent),
    "lite_agent_execution_started": (AGENT, _open_agent),
    "llm_call_started": (CALL, _open_call),
    "tool_usage_started": (TOOL, _open_tool),
}
_ENDS = {
    "crew_kickoff_completed": CREW,
    "crew_kickoff_failed": CREW,
    "flow_finished": FLOW,
    "flow_failed": FLOW,
    "flow_paused": FLOW,
    "method_execution_finished": METHOD,
    "method_execution_failed": METHOD,
    "method_execution_paused": METHOD,
    "task_completed": TASK,
    "task_failed": TASK,
    "agent_execution_completed": AGENT,
    "agent_execution_error": AGENT,
    "lite_agent_execution_completed": AGENT,
    "lite_agent_execution_error": AGENT,
    "llm_call_completed": CALL,
    "llm_call_failed": CALL,
    "tool_usage_finished": TOOL,
    "tool_usage_error": TOOL,
}
