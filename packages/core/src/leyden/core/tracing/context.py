"""Context variables for the attempt that runs and the agent that makes the next model call."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Event
from typing import Any, NamedTuple

import msgspec
from opentelemetry import trace

from leyden.core.data.rollout import RolloutMode
from leyden.core.data.route import Route
from leyden.core.data.span import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt:
    """An open attempt: the attempt to which this context's model calls and spans belong."""

    rollout_id: str
    attempt_id: str
    token: str
    """Token that proves to the gateway which attempt a call belongs to."""
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    trace_id: str
    """32 hexadecimal digits. The trace of spans that have no OpenTelemetry parent."""
    mode: RolloutMode | None = None
    routes: tuple[Route, ...] = ()
    """Rules that send model calls of the attempt to a policy or to the agent's provider.

    The first matching rule applies.

    A call that no rule matches goes to the default policy.
    """
    fail_open: bool = False
    """In production capture: a call that the gateway cannot answer goes to the agent's own provider."""
    notes: list[Span] = field(default_factory=list[Span], repr=False)
    """Spans that emitters have written. The runner stores them."""
    keep: Callable[[Span], object] | None = field(default=None, repr=False, compare=False)
    """In production capture: called with each framework span that ends in the attempt.

    Used where this process has no recorder.
    """
    extra: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    closed: Event = field(default_factory=Event, repr=False, compare=False)
    """Set when the attempt's block is left. Threads left over after a timeout then belong to no attempt."""


class EndFlag:
    """Flag for an end. It is an `Event` without waiting, at a tenth of the cost."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set


class Caller(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The agent that makes the next model call, as its framework reports it."""

    agent: str | None = None
    node: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    """Id of the framework's own `chat` span."""
    framework: str | None = None
    outer: "Caller | None" = None
    """Caller that is current again once this one has ended."""
    is_root: bool = False
    """Whether the framework names no run around this call."""
    otel_span_id: int = msgspec.field(default_factory=lambda: _current_span_id())
    """Id of OpenTelemetry's current span when this caller began. A different current span is newer than the caller."""
    ended: EndFlag = msgspec.field(default_factory=EndFlag)


class ContextState(NamedTuple):
    """Attempt and caller of a context; see `context_state`."""

    attempt: OpenAttempt | None
    caller: Caller | None
    outside: bool


agent_name: ContextVar[str | None] = ContextVar("leyden_agent_name", default=None)
"""The user's name for the agent of this attempt, as in `file.py:name`. For frameworks whose agents have no name."""

_ATTEMPT: ContextVar[OpenAttempt | None] = ContextVar("leyden_attempt", default=None)
_OUTSIDE: ContextVar[bool] = ContextVar("leyden_outside", default=False)
_CALLER: ContextVar[Caller | None] = ContextVar("leyden_caller", default=None)
_process: tuple[OpenAttempt | None, Caller | None] = (None, None)
"""Attempt and caller of the whole process, for contexts that have none of their own."""


def set_process_attempt(attempt: OpenAttempt, caller: Caller) -> None:
    """Set the attempt and the caller of the whole process, in a child process that an agent started."""
    global _process
    _process = attempt, caller


@contextmanager
def process_attempt(attempt: OpenAttempt) -> Generator[None]:
    """Let contexts without an attempt belong to `attempt` inside the block.

    For a process of one attempt. Threads that the agent's module started at its import then belong to the attempt too.
    """
    global _process
    before, _process = _process, (attempt, None)
    try:
        yield
    finally:
        _process = before


def current_attempt() -> OpenAttempt | None:
    """Return this context's open attempt. None without one, and in code that a closed attempt left running."""
    attempt = _ATTEMPT.get()
    if attempt is None:
        return None if _OUTSIDE.get() else _process[0]
    return None if attempt.closed.is_set() else attempt


def is_left_over() -> bool:
    """Return whether this context's attempt is closed. Always False where the attempt fails open."""
    attempt = _ATTEMPT.get()
    return attempt is not None and attempt.closed.is_set() and not attempt.fail_open


def current_caller() -> Caller | None:
    """Return the caller that an adapter has set in this context and that has not ended."""
    return not_ended(_CALLER.get())


def not_ended(caller: Caller | None) -> Caller | None:
    """Return `caller`, or the caller that is current once `caller` has ended."""
    while caller is not None and caller.ended.is_set():
        caller = caller.outer
    return caller or _process[1]


def is_outside() -> bool:
    """Return whether this context was put outside every attempt on purpose. Its model calls are then not routed."""
    return _OUTSIDE.get()


def set_caller(caller: Caller | None) -> None:
    """Set the caller of this context until `caller.ended` is set.

    It is never reset by a token, because a framework may end a call in another context than the one it began in.
    """
    _CALLER.set(caller)


def context_state() -> ContextState:
    """Return this context's attempt and caller, for `set_context_state` in another context.

    Several tasks may execute the steps of one generator.
    """
    return ContextState(_ATTEMPT.get(), _CALLER.get(), _OUTSIDE.get())


def set_context_state(state: ContextState) -> None:
    """Set this context's attempt and caller to those of the context that `state` was taken from."""
    _ATTEMPT.set(state.attempt)
    _CALLER.set(state.caller)
    _OUTSIDE.set(state.outside)


@contextmanager
def open_attempt(attempt: OpenAttempt) -> Generator[OpenAttempt]:
    """Make `attempt` the current one inside the block. Leaving the outermost block closes it."""
    outermost = _ATTEMPT.get() is not attempt
    if outermost:
        attempt.closed.clear()
    token = _ATTEMPT.set(attempt)
    caller = _CALLER.set(None)
    outside = _OUTSIDE.set(False)
    try:
        yield attempt
    finally:
        _OUTSIDE.reset(outside)
        _CALLER.reset(caller)
        _ATTEMPT.reset(token)
        if outermost:
            attempt.closed.set()


@contextmanager
def outside_attempt() -> Generator[None]:
    """Run the block as if no attempt were open. Its model calls are not routed; reward functions run like this."""
    token = _ATTEMPT.set(None)
    outside = _OUTSIDE.set(True)
    try:
        yield
    finally:
        _OUTSIDE.reset(outside)
        _ATTEMPT.reset(token)


def _current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id
