"""Which attempt is running and who is speaking, as context variables. Knows nothing of any framework or transport."""

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
    """The attempt that the current context works for."""

    rollout_id: str
    attempt_id: str
    token: str
    """Proves to the gateway which attempt a call belongs to."""
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    trace_id: str
    """32 hexadecimal digits; used for spans that have no OpenTelemetry parent."""
    mode: RolloutMode | None = None
    routes: tuple[Route, ...] = ()
    """Which of the attempt's model calls go where; the first that fits decides, and a call that none fits goes to
    the policy."""
    fail_open: bool = False
    """In production capture: a call that the gateway cannot take goes to the agent's own provider."""
    notes: list[Span] = field(default_factory=list[Span], repr=False)
    """Spans written by the emitters; the runner stores them."""
    keep: Callable[[Span], object] | None = field(default=None, repr=False, compare=False)
    """Takes the spans of frameworks that end in it, where no recorder of this process does: in production capture."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    closed: Event = field(default_factory=Event, repr=False, compare=False)
    """Set when its block is left: what the attempt left behind (threads after a timeout) works for nobody."""


class Ended:
    """Whether something has ended: an `Event` that nobody waits for, at a tenth of the price."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told = False

    def set(self) -> None:
        """Say so."""
        self._told = True

    def is_set(self) -> bool:
        """Whether it was said."""
        return self._told


class Caller(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Who makes the next model call, as the framework knows it."""

    agent: str | None = None
    node: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    """The framework's own `chat` span."""
    framework: str | None = None
    outer: "Caller | None" = None
    """Who speaks again once this one has ended."""
    is_root: bool = False
    """Its framework names no run of its own around it."""
    beside: int = msgspec.field(default_factory=lambda: _current_span_id())
    """OpenTelemetry's current span when this one began to speak; another one is newer than the caller."""
    ended: Ended = msgspec.field(default_factory=Ended)


class Place(NamedTuple):
    """What a context works for, and who speaks there; see `where`."""

    attempt: OpenAttempt | None
    caller: Caller | None
    outside: bool


agent_name: ContextVar[str | None] = ContextVar("leyden_agent_name", default=None)
"""What the user calls the agent of this attempt, as in `file.py:name`; for frameworks in which it has no name."""

_ATTEMPT: ContextVar[OpenAttempt | None] = ContextVar("leyden_attempt", default=None)
_OUTSIDE: ContextVar[bool] = ContextVar("leyden_outside", default=False)
_CALLER: ContextVar[Caller | None] = ContextVar("leyden_caller", default=None)
_process: tuple[OpenAttempt | None, Caller | None] = (None, None)
"""What the whole process works for, and who speaks in it, where its contexts do not say."""


def work_for(attempt: OpenAttempt, caller: Caller) -> None:
    """Let every context of this process work for `attempt`, and `caller` speak in it: it is a child of an agent's."""
    global _process
    _process = attempt, caller


@contextmanager
def whole_process_for(attempt: OpenAttempt) -> Generator[None]:
    """Let contexts of this process that work for no attempt work for `attempt` inside the block.

    For a process of one attempt: threads that the agent's module started when it was imported work for it, too.
    """
    global _process
    before, _process = _process, (attempt, None)
    try:
        yield
    finally:
        _process = before


def current_attempt() -> OpenAttempt | None:
    """The open attempt of this context, if any; None in what a closed attempt left running."""
    attempt = _ATTEMPT.get()
    if attempt is None:
        return None if _OUTSIDE.get() else _process[0]
    return None if attempt.closed.is_set() else attempt


def is_left_over() -> bool:
    """Whether this context works for an attempt that is closed; one that fails open leaves nothing over."""
    attempt = _ATTEMPT.get()
    return attempt is not None and attempt.closed.is_set() and not attempt.fail_open


def current_caller() -> Caller | None:
    """Who speaks in this context, if an adapter said so; what has ended speaks no more."""
    return not_ended(_CALLER.get())


def not_ended(caller: Caller | None) -> Caller | None:
    """Return `caller`, or who speaks once it has ended if it has."""
    while caller is not None and caller.ended.is_set():
        caller = caller.outer
    return caller or _process[1]


def is_outside() -> bool:
    """Whether this context was put outside every attempt on purpose: its model calls go where they always went."""
    return _OUTSIDE.get()


def set_caller(caller: Caller | None) -> None:
    """Say who speaks from here on, until `caller.ended` is set.

    Never reset by token: a framework may end a call in another context than it began it.
    """
    _CALLER.set(caller)


def where() -> Place:
    """Return what this context works for, to `move` there from another.

    The steps of one generator may be taken by several tasks.
    """
    return Place(_ATTEMPT.get(), _CALLER.get(), _OUTSIDE.get())


def move(place: Place) -> None:
    """Work for what the context that `place` was taken from works for, from here on."""
    _ATTEMPT.set(place.attempt)
    _CALLER.set(place.caller)
    _OUTSIDE.set(place.outside)


@contextmanager
def open_attempt(attempt: OpenAttempt) -> Generator[OpenAttempt]:
    """Make `attempt` the current one inside the block; leaving the outermost block closes it."""
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
    """Run the block as if no attempt were open: its model calls are not routed (reward functions run like this)."""
    token = _ATTEMPT.set(None)
    outside = _OUTSIDE.set(True)
    try:
        yield
    finally:
        _OUTSIDE.reset(outside)
        _ATTEMPT.reset(token)


def _current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id
