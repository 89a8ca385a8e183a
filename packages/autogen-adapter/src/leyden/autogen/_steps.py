"""Steps of an AutoGen run (teams, agents, tools, model calls) as spans and as who speaks. Knows nothing of AutoGen.

A step ends in the context it began in, or in one that has moved there: `in_steps` sees to that where the pieces of
one stream are taken by several tasks.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opentelemetry import context as otel
from opentelemetry import trace

from leyden.core.tracing import context
from leyden.core.tracing.context import current_caller, move, where
from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run, RunTree

RUNS = RunTree("autogen")
OF_THEIR_AGENT = ("chat", "tool")
"""Steps that belong to the node of the step around them."""


class Place(NamedTuple):
    """What a context works for, and the innermost step that it is in."""

    attempt: context.ContextState
    step: "Step | None"


_STEP: ContextVar["Step | None"] = ContextVar("leyden_autogen_step", default=None)


@dataclass(slots=True, eq=False)
class Step:
    """One thing that AutoGen does, from its beginning to its end."""

    kind: str
    name: str
    node: str | None = None
    current: bool = False
    """Whether its span is made OpenTelemetry's current one."""
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    """Attributes that are known at its end."""
    failure: BaseException | None = None
    """What it failed with, where it raises nothing."""
    outer: "Step | None" = None
    run: Run | None = None
    before: otel.Context | None = None
    ended: bool = False

    def is_again(self, kind: str, name: str) -> bool:
        """Whether `name` is this very step, told of twice: a model client inside a model client is one call."""
        return self.kind == kind and kind != "team" and (self.name == name or kind == "chat")


def innermost() -> Step | None:
    """The step that this context is in; what has ended holds nothing."""
    step = _STEP.get()
    while step is not None and step.ended:
        step = step.outer
    return step


@contextmanager
def in_step(step: Step, begin: Callable[[Run], None]) -> Generator[Step]:
    """Be in `step` inside the block; `begin` opens the span of its run. A step told of twice is recorded once."""
    step.outer = outer = innermost()
    if outer is not None and outer.is_again(step.kind, step.name):
        yield outer
        return
    begin_step(step, begin)
    try:
        yield step
    except GeneratorExit:  # a stream that nobody listens to any more has not failed
        raise
    except BaseException as error:
        step.failure = error
        raise
    finally:
        end_step(step)


@hidden_from_warnings
async def in_steps(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield what `stream` yields, each piece made in the place where the one before was, whichever task takes it."""
    inside: Any = None
    try:
        while True:
            outside = here(), otel.get_current()
            if inside is not None:
                _go(*inside)
            try:
                piece = await anext(stream)
            except StopAsyncIteration:
                return
            finally:
                inside = here(), otel.get_current()
                _go(*outside)
            yield piece
    finally:
        if inside is not None:
            _go(*inside)
        await stream.aclose()


@quietly
def begin_step(step: Step, begin: Callable[[Run], None]) -> None:
    """Begin a step here, below the innermost one; `begin` opens the span of its run."""
    speaking, outer = current_caller(), step.outer
    if outer is not None and (outer.run is None or outer.run.caller is not speaking):
        outer = None  # another framework, or a block of the user's, is in between
    step.run = run = RUNS.start(step, outer, step.name, step.node)
    if run is None:
        return
    if speaking is not None:
        run.agent = run.agent or speaking.agent
        run.node = run.node or (speaking.node if step.kind in OF_THEIR_AGENT else None)
    begin(run)
    _STEP.set(step)
    if step.current and run.span is not None and run.span.get_span_context().is_valid:
        step.before = otel.get_current()
        otel.attach(trace.set_span_in_context(run.span))


@quietly
def end_step(step: Step) -> None:
    """End a step: what began in it speaks no more."""
    step.ended = True
    if step.run is not None and step.before is not None and trace.get_current_span() is step.run.span:
        otel.attach(step.before)  # by token it could not be undone in another context
    RUNS.end(step, step.failure, step.known)


def here() -> Place:
    """Return what this context works for and the step that it is in, to `go` there from another."""
    return Place(where(), _STEP.get())


def go(place: Place) -> None:
    """Work where `place` was taken, from here on."""
    move(place.attempt)
    _STEP.set(place.step)


def _go(place: Place, current: otel.Context) -> None:
    go(place)
    otel.attach(current)
