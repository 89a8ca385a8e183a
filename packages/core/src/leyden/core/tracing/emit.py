"""Emitters: write spans from an agent, its tools or its callbacks into the attempt that they run in.

They work in functions, coroutines and threads. Outside an attempt they do nothing.
"""

import inspect
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from leyden.core.data import semconv
from leyden.core.data.bounds import MOST_REWARD
from leyden.core.data.plain.own_methods import short_name
from leyden.core.data.plain.spans import is_plain_span, plain_span
from leyden.core.data.plain.values import as_json, is_a, message_of, number, pairs_of, plain, shown, stack_of
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.errors import RewardError
from leyden.core.tracing.context import Caller, OpenAttempt, current_attempt, current_caller, set_caller

log = logging.getLogger("leyden.emit")

P = ParamSpec("P")
R = TypeVar("R")

_silent: set[str] = set()


def emit_reward(
    value: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    feedback: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Give the attempt a reward: a number, or named dimensions. `feedback` is a text that says why.

    `attributes` are further attributes of the span, here and in the other emitters.

    The reward of dimensions is their sum; with `primary_key`, it is the dimension of that name alone. Raises
    RewardError, inside an attempt or not, for anything that is not a finite number of at most `MOST_REWARD`. Raises it
    also for a `primary_key` that is no dimension.
    """
    own = reward_attributes(value)
    if primary_key is not None:
        primary = own.get(f"{semconv.REWARD_DIMENSION}{primary_key}")
        if primary is None:
            found = [name for name in own if name.startswith(semconv.REWARD_DIMENSION)]
            named = ", ".join(name.removeprefix(semconv.REWARD_DIMENSION) for name in found) or "none"
            raise RewardError(f"primary_key is {shown(primary_key)}; the reward's dimensions are: {named}")
        own[semconv.REWARD_VALUE] = primary
    if feedback is not None:
        own[semconv.REWARD_FEEDBACK] = str(feedback)
    _emit(semconv.REWARD, {**(attributes or {}), **own})


def emit_observation(*, role: str, content: str) -> None:
    """Record an observation of the agent, such as an environment's response."""
    _emit(semconv.OBSERVATION, {semconv.ROLE: role, semconv.CONTENT: content})


def emit_message(content: str, *, attributes: Mapping[str, Any] | None = None) -> None:
    """Record a line of text."""
    _emit(semconv.MESSAGE, {**(attributes or {}), semconv.CONTENT: content})


def emit_annotation(attributes: Mapping[str, Any]) -> None:
    """Record attributes on a span of their own, such as tags of the attempt."""
    _emit(semconv.ANNOTATION, dict(attributes))


def emit_object(value: Any, *, attributes: Mapping[str, Any] | None = None) -> None:
    """Record any object as JSON.

    `data.plain.values` replaces what JSON cannot hold, and the span lists the replacements.
    """
    kept = as_json(value, semconv.CONTENT)
    own: Attributes = {semconv.CONTENT: kept.value}
    if kept.reasons:
        own[semconv.REDUCED] = kept.reasons
    _emit(semconv.OBJECT, {**(attributes or {}), **own})


def emit_exception(error: BaseException, *, attributes: Mapping[str, Any] | None = None) -> None:
    """Record an exception that the agent handled itself. Raises TypeError for an object that is no exception."""
    if not is_a(error, BaseException):
        raise TypeError(
            f"emit_exception takes an exception, as in `except ValueError as error: emit_exception(error)`, "
            f"not {shown(error)}, a {short_name(error)}; use emit_message for a text"
        )
    own: Attributes = {
        "exception.type": short_name(error),
        "exception.message": message_of(error),
        semconv.STACK_TRACE: stack_of(error),
    }
    _emit(semconv.EXCEPTION, {**(attributes or {}), **own}, _outcome(error))


def reward_attributes(value: object) -> Attributes:
    """Return the attributes of a span with the reward `value`, a number or a mapping of named numbers.

    Raises RewardError when there is no number, or one that is not finite or exceeds `MOST_REWARD`.
    """
    named = pairs_of(value)
    if named is None:
        return {semconv.REWARD_VALUE: _finite(value, "the reward")}
    if not named:
        raise RewardError("the reward has no dimensions; give at least one, or a number")
    parts = {_name(name): _finite(part, f"reward dimension {shown(name)}") for name, part in named}
    dimensions = {f"{semconv.REWARD_DIMENSION}{name}": part for name, part in parts.items()}
    return {semconv.REWARD_VALUE: _within(sum(parts.values()), "the sum of the reward's dimensions"), **dimensions}


class operation:
    """Named span around a part of the agent: `with operation("search"): …`, or a decorator of a sync or async function.

    Its children are the spans emitted inside, and model calls for which no framework sets a caller. Exceptions pass
    through. `attributes` are those of every span of the operation.
    """

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        self._name, self._attributes = name, dict(attributes or {})
        self._open: list[tuple[OpenAttempt, Caller | None, str, float]] = []
        self._added: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._added.append({})
        attempt, outer = _attempt(self._name), current_caller()
        if attempt is None:
            return self
        span_id, of = secrets.token_hex(8), outer or Caller()
        set_caller(Caller(agent=of.agent, node=of.node, trace_id=of.trace_id or attempt.trace_id, span_id=span_id))
        self._open.append((attempt, outer, span_id, time.time()))
        return self

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the operation's span. Raises RuntimeError outside the `with` block."""
        if not self._added:
            raise RuntimeError("set_attributes works inside the block: with operation(...) as one: one.set_attributes")
        self._added[-1].update(attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        added = self._added.pop()
        if self._open:
            attempt, outer, span_id, start = self._open.pop()
            set_caller(outer)
            own = {**self._attributes, **added, **_error_type(error)}
            _write(attempt, self._name, own, _outcome(error), (span_id, start))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` with an operation of its own around every call."""
        name, given = self._name, self._attributes
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with operation(name, given):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", call_async)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with operation(name, given):
                return function(*args, **kwargs)

        return call


def _emit(name: str, attributes: Attributes, status: SpanStatus | None = None) -> None:
    attempt = _attempt(name)
    if attempt is not None:
        _write(attempt, name, attributes, status or SpanStatus(), (secrets.token_hex(8), time.time()))


def _attempt(name: str) -> OpenAttempt | None:
    """Return the open attempt. Logs once for each `name` where there is none."""
    attempt = current_attempt()
    if attempt is None and name not in _silent:
        _silent.add(name)
        log.debug("%s outside an attempt is not recorded", name)
    return attempt


def _write(
    attempt: OpenAttempt, name: str, attributes: Attributes, status: SpanStatus, identity: tuple[str, float]
) -> None:
    """Append a span whose parent is the current caller's span. `identity` is the new span's id and start time."""
    caller = current_caller() or Caller()
    span = Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=0,
        trace_id=caller.trace_id or attempt.trace_id,
        span_id=identity[0],
        parent_id=caller.span_id,
        name=name,
        status=status,
        attributes=attributes,
        start_time=identity[1],
        end_time=time.time(),
    )
    attempt.notes.append(span if is_plain_span(span) else plain_span(span))


def _error_type(error: BaseException | None) -> Attributes:
    return {} if error is None else {semconv.ERROR_TYPE: short_name(error)}


def _outcome(error: BaseException | None) -> SpanStatus:
    return SpanStatus() if error is None else SpanStatus(code="error", description=message_of(error))


def _name(value: object) -> str:
    name = plain(value).value
    return name if isinstance(name, str) else shown(value)


def _finite(value: object, what: str) -> float:
    found = number(value)
    if found is None:
        raise RewardError(f"{what} is {shown(value)}, a {short_name(value)}; it must be a finite number")
    if not math.isfinite(found):
        raise RewardError(f"{what} is {found}; it must be a finite number")
    return _within(found, what)


def _within(value: float, what: str) -> float:
    if abs(value) > MOST_REWARD:
        raise RewardError(f"{what} is {value:g}; it must be between {-MOST_REWARD:g} and {MOST_REWARD:g}")
    return value
