"""Emitters of Agent Lightning 0.3, and its functions that read emitted spans.

Where the original raises without an active tracer, these record nothing outside an attempt. They return nothing: the
runner stores what they emit.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast, overload

import msgspec

from leyden.core.agent_lightning.replaced import refuse
from leyden.core.agent_lightning.types import RewardPydanticModel, SpanLike
from leyden.core.data import semconv
from leyden.core.data.plain.values import as_json
from leyden.core.errors import UsageError
from leyden.core.tracing import emit
from leyden.core.trajectory.assemble import last_reward

P = ParamSpec("P")
R = TypeVar("R")

REWARD_FUNCTION = "leyden.reward_function"
"""Name of the span around a function with `@reward`."""
INPUT, OUTPUT = "input", "output"
"""Attributes of an operation's span, as JSON."""


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> None:
    """Give the attempt a reward: a number, or named numbers, of which `primary_key` names the one that counts.

    Raises UsageError for named numbers without `primary_key`, as the original does.
    """
    _check(propagate)
    if isinstance(reward, Mapping) and primary_key is None:
        raise UsageError("emit_reward with named numbers needs primary_key=, the name of the number that counts")
    emit.emit_reward(reward, primary_key=primary_key, attributes=attributes)


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> None:
    """Record attributes on a span of their own; nested mappings become names with dots."""
    _check(propagate)
    emit.emit_annotation(dict(_flat(annotation)))


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> None:
    """Record a line of text. Raises TypeError for anything else."""
    _check(propagate)
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # agents pass anything
        raise TypeError(f"emit_message takes a text, not a {type(message).__name__}; use emit_object for other values")
    emit.emit_message(message, attributes=attributes)


def emit_object(object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> None:
    """Record any object as JSON."""
    _check(propagate)
    emit.emit_object(object, attributes=attributes)


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> None:
    """Record an exception that the agent handled itself."""
    _check(propagate)
    emit.emit_exception(exception, attributes=attributes)


def reward(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, sync or async, so that every call emits the number that it returns as the reward."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with emit.operation(REWARD_FUNCTION):
                result = await function(*args, **kwargs)
            emit.emit_reward(result)
            return result

        return cast("Callable[P, R]", call_async)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with emit.operation(REWARD_FUNCTION):
            result = function(*args, **kwargs)
        emit.emit_reward(cast("float", result))
        return result

    return call


class Operation(emit.operation):
    """`operation` of Leyden, with the original's `set_input` and `set_output`."""

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        self.name, self._given = name, dict(attributes or {})
        super().__init__(name, self._given)

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record what the operation was given, as JSON."""
        self.set_attributes({INPUT: as_json({"args": list(args), **kwargs} if args else kwargs, INPUT).value})

    def set_output(self, output: Any) -> None:
        """Record what the operation returned, as JSON."""
        self.set_attributes({OUTPUT: as_json(output, OUTPUT).value})

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` with an operation around every call, which records its arguments and its result."""
        signature = inspect.signature(function)
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Operation(self.name, self._given) as one:
                    one.set_input(**signature.bind(*args, **kwargs).arguments)
                    result = await function(*args, **kwargs)
                    one.set_output(result)
                    return result

            return cast("Callable[P, R]", call_async)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with Operation(self.name, self._given) as one:
                one.set_input(**signature.bind(*args, **kwargs).arguments)
                result = function(*args, **kwargs)
                one.set_output(result)
                return result

        return call


@overload
def operation(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def operation(*, name: str | None = None, propagate: bool = True, **attributes: Any) -> Operation: ...
def operation(
    function: Callable[..., Any] | None = None, *, name: str | None = None, propagate: bool = True, **attributes: Any
) -> Any:
    """Put a span around a part of the agent, as a context manager or as a decorator, with arguments or without.

    A span without a name is called `leyden.operation`, a function's span like the function.
    """
    _check(propagate)
    if function is not None:
        return Operation(name or function.__name__, attributes)(function)
    return Operation(name or semconv.OPERATION_SPAN, attributes)


def get_rewards_from_span(span: SpanLike) -> list[RewardPydanticModel]:
    """Return the named numbers of a reward span, or its number under the name `primary`; empty for other spans.

    The first one is the reward itself, unless it is the sum of all of them.
    """
    value, named = last_reward([span])
    if value is None:
        return []
    found = [RewardPydanticModel(name=name, value=part) for name, part in named.items()]
    if not found:
        return [RewardPydanticModel(name="primary", value=value)]
    return sorted(found, key=lambda one: one.value != value)


def get_reward_value(span: SpanLike) -> float | None:
    """Return the reward of a reward span; None for other spans."""
    return last_reward([span])[0]


def is_reward_span(span: SpanLike) -> bool:
    """Return whether a span has a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Iterable[SpanLike]) -> list[SpanLike]:
    """Return the spans that have a reward, in order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Iterable[SpanLike]) -> float | None:
    """Return the reward of the last span that has one; None without any."""
    found = find_reward_spans(spans)
    return get_reward_value(found[-1]) if found else None


def get_message_value(span: SpanLike) -> str | None:
    """Return the text that `emit_message` recorded on a span; None for other spans."""
    return span.text(semconv.CONTENT) if span.name == semconv.MESSAGE else None


def get_object_value(span: SpanLike) -> Any:
    """Return the object that `emit_object` recorded on a span, as plain data; None for other spans."""
    content = span.text(semconv.CONTENT) if span.name == semconv.OBJECT else None
    return None if content is None else msgspec.json.decode(content)


def _check(propagate: bool) -> None:
    if not propagate:
        refuse("propagate=False", "make a leyden.core.Span and store it with store.add_span")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


__all__ = [
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "operation",
    "reward",
]
