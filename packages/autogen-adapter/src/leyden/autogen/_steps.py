"""Steps: records teams, agents, tools and model calls as spans and as callers. Uses no AutoGen code.

A step ends in the context it began in, or in one that was set to it: `in_steps` does this where several tasks read the
pieces of one stream.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opentelemetry import context as otel
from opentelemetry import trace

from leyden.core.tracing import context
from leyden.core.tracing.context import context_state, current_caller, set_context_state
from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run, RunTree

RUNS = RunTree("autogen")
INHERIT_NODE = ("chat", "tool")
"""Kinds of steps that belong to the node of the step around them."""


class StepState(NamedTuple):
    """Attempt and caller of a context, and its innermost step."""

    context_state: context.ContextState
    step: "Step | None"


_STEP: ContextVar["Step | None"] = ContextVar("leyden_autogen_step", default=None)


@dataclass(slots=True, eq=False)
class Step:
    """One step of AutoGen, from start to end."""

    kind: str
    name: str
    node: str | None = None
    is_current: bool = False
    """Whether its span becomes OpenTelemetry's current one."""
    end_attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Attributes that are known at its end."""
    failure: BaseException | None = None
    """Its error, where it raises none."""
    outer: "Step | None" = None
    run: Run | None = None
    previous_context: otel.Context | None = None
    ended: bool = False

    def is_same(self, kind: str, name: str) -> bool:
        """Whether `name` is this same step, reported twice: nested model clients are one call."""
        return self.kind == kind and kind != "team" and (self.name == name or kind == "chat")


def innermost() -> Step | None:
    """Return this context's innermost step that has not ended."""
    step = _STEP.get()
    while step is not None and step.ended:
        step = step.outer
    return step


@contextmanager
def in_step(step: Step, begin: Callable[[Run], None]) -> Generator[Step]:
    """Enter `step` inside the block; `begin` opens its run's span. A step reported twice is recorded once."""
    step.outer = outer = innermost()
    if outer is not None and outer.is_same(step.kind, step.name):
        yield outer
        return
    begin_step(step, begin)
    try:
        yield step
    except GeneratorExit:  # a stream whose reader has stopped has not failed
        raise
    except BaseException as error:
        step.failure = error
        raise
    finally:
        end_step(step)


@hidden_from_warnings
async def in_steps(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield what `stream` yields, each piece made in the context of the one before, in any reading task."""
    inside: Any = None
    try:
        while True:
            outside = current_state(), otel.get_current()
            if inside is not None:
                _set_states(*inside)
            try:
                piece = await anext(stream)
            except StopAsyncIteration:
                return
            finally:
                inside = current_state(), otel.get_current()
                _set_states(*outside)
            yield piece
    finally:
        if inside is not None:
            _set_states(*inside)
        await stream.aclose()


@quietly
def begin_step(step: Step, begin: Callable[[Run], None]) -> None:
    """Begin a step here, below the innermost one; `begin` opens the span of its run."""
    caller, outer = current_caller(), step.outer
    if outer is not None and (outer.run is None or outer.run.caller is not caller):
        outer = None  # another framework, or a span of the user's, is in between
    step.run = run = RUNS.start(step, outer, step.name, step.node)
    if run is None:
        return
    if caller is not None:
        run.agent = run.agent or caller.agent
        run.node = run.node or (caller.node if step.kind in INHERIT_NODE else None)
    begin(run)
    _STEP.set(step)
    if step.is_current and run.span is not None and run.span.get_span_context().is_valid:
        step.previous_context = otel.get_current()
        otel.attach(trace.set_span_in_context(run.span))


@quietly
def end_step(step: Step) -> None:
    """End a step; it is no caller any more."""
    step.ended = True
    if step.run is not None and step.previous_context is not None and trace.get_current_span() is step.run.span:
        otel.attach(step.previous_context)  # its token could not be reset in another context
    RUNS.end(step, step.failure, step.end_attributes)


def current_state() -> StepState:
    """Return attempt, caller and step of this context, for `set_context` in another context."""
    return StepState(context_state(), _STEP.get())


def set_state(state: StepState) -> None:
    """Set attempt, caller and step of this context to those of `state`."""
    set_context_state(state.context_state)
    _STEP.set(state.step)


def _set_states(state: StepState, current: otel.Context) -> None:
    set_state(state)
    otel.attach(current)
