"""Remote calls of the store: a table of all methods, derived from the signatures of `LightningStore`.

Server and client both use the table. A call is a map of arguments, and its answer a value: MessagePack between Leyden's
processes, JSON for other clients. Both are validated against the annotations of the interface. Does not send requests;
see `store.http`.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec

from leyden.core.data.page import Page
from leyden.core.data.rollout import Attempt, AttemptedRollout, ClaimedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import CallRefused, IllegalMove, NotFound, StoreError, UsageError, WrongType
from leyden.core.store.base import LightningStore
from leyden.core.store.text import NO_CHARACTER

_NOT_CALLED = frozenset({"close", "add_otel_span"})
"""Methods without a remote call.

Closing a client leaves the store open. Spans of the OpenTelemetry SDK are converted before they are sent.
"""

WAITING = frozenset({"dequeue_many_rollouts", "wait_for_rollouts"})
"""Methods that may wait."""

_READS = ("query_", "get_rollout", "get_latest_", "get_resources", "get_run_", "get_worker", "statistics", "wait_for_")

REQUEST_ID = "idempotency-key"
"""Header with an id for a call that writes; the server answers a repeated call with its first answer."""

CAPABILITIES = "x-leyden-capabilities"
"""Header of every answer: features of the store behind the server, separated by commas."""

BATCH_PATH = "together"
"""Path of a request with several calls: a list of `BatchPart`, answered by a `BatchPartAnswer` for each, in order."""

SMALL = frozenset({"update_attempt", "add_span", "add_many_spans"})
"""Methods called for every attempt; several calls made at once are sent in one request."""

PREFER, MINIMAL = "prefer", "return=minimal"
"""Header with which a server returns only the numbers of spans (RFC 7240), since the caller has the spans already."""

NUMBERED = frozenset({"add_span", "add_many_spans"})
"""Methods that support the minimal answer."""

LONGEST_WAIT = 30.0
"""Seconds that one request may wait; a client that waits longer sends another request."""

ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (NotFound, IllegalMove, WrongType, CallRefused, StoreError, UsageError, ValueError, TypeError)
}
"""Errors that are sent under their own name."""


class StoreFailure(msgspec.Struct, frozen=True):
    """An error of the store in the form in which it is sent to the caller."""

    error: str
    message: str

    def raised(self) -> Exception:
        """Return the exception for the caller; an unknown name becomes StoreError."""
        return ERRORS.get(self.error, StoreError)(self.message)


class BatchPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of several calls in a request."""

    method: str
    id: str
    """As in `REQUEST_ID`."""
    call: bytes


class BatchPartAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Status and body that the call would have as a request of its own."""

    status: int
    body: bytes


class AnyRollout(Rollout, frozen=True, kw_only=True):
    """A rollout with or without an attempt; msgspec cannot distinguish a union of the two structs."""

    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the interface: its name, and the types of its arguments and answer."""

    name: str
    signature: inspect.Signature
    function: Callable[..., Awaitable[Any]]
    about: str
    """Docstring of the method in the interface."""
    arguments: type[msgspec.Struct]
    answer: Any
    """Annotation of the return value."""
    _arguments: msgspec.msgpack.Decoder[Any]
    _answer: msgspec.msgpack.Decoder[Any]

    @property
    def writes(self) -> bool:
        """Whether a call may change the store."""
        return not self.name.startswith(_READS)

    def encode_call(self, *arguments: Any, **named: Any) -> bytes:
        """Return the arguments of a call as MessagePack; raises UsageError for one that cannot be encoded.

        Names are not checked where all arguments are given by name, which is faster; the server checks them.
        """
        by_name = self.signature.bind(*arguments, **named).arguments if arguments else named
        given = {name: value for name, value in by_name.items() if value is not msgspec.UNSET}
        try:
            return msgspec.msgpack.encode(given)
        except UnicodeEncodeError as error:
            raise UsageError(f"an argument of {self.name} cannot be stored: {NO_CHARACTER}") from error
        except (TypeError, OverflowError, RecursionError) as error:
            raise UsageError(f"an argument of {self.name} cannot be stored: {error}; use JSON values") from error

    def decode_call(self, data: bytes, *, json: bool = False) -> dict[str, Any]:
        """Return the arguments by name; raises ValueError when `data` is not a call of this method."""
        arguments = msgspec.json.decode(data or b"{}", type=self.arguments) if json else self._arguments.decode(data)
        return {name: getattr(arguments, name) for name in arguments.__struct_fields__}

    def decode_answer(self, data: bytes) -> Any:
        """Return the answer; raises ValueError when `data` is not an answer of this method."""
        return _public(self._answer.decode(data))


@cache
def methods() -> Mapping[str, Method]:
    """Return every method that can be called remotely, by name."""
    names = [
        name
        for kind in LightningStore.__mro__
        for name, member in vars(kind).items()
        if inspect.iscoroutinefunction(member) and name not in _NOT_CALLED
    ]
    return {name: _method(name, getattr(LightningStore, name)) for name in names}


def writes(path: str) -> bool:
    """Whether a request to this path may change the store."""
    return path == BATCH_PATH or methods()[path].writes


def _method(name: str, function: Callable[..., Awaitable[Any]]) -> Method:
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    hints = get_type_hints(function)
    fields = [(p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default) for p in own]
    arguments = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    answer = _with_any_rollout(hints["return"])
    return Method(
        name,
        signature.replace(parameters=own),
        function,
        inspect.getdoc(function) or "",
        arguments,
        answer,
        msgspec.msgpack.Decoder(arguments),
        msgspec.msgpack.Decoder(answer),
    )


def numbers_of(spans: Sequence[Span], stored: Sequence[Span]) -> list[int]:
    """Return the stored number of each of `spans`, and 0 for spans that are not in `stored`.

    `stored` has a part of `spans`, in the same order.
    """
    numbers: list[int] = []
    left = iter(stored)
    following = next(left, None)
    for span in spans:
        if following is None or _key(span) != _key(following):
            numbers.append(0)
        else:
            numbers.append(following.sequence_id)
            following = next(left, None)
    return numbers


def numbered(spans: Sequence[Span], numbers: Sequence[int]) -> list[Span]:
    """Return the spans with the numbers from `numbers_of`, without those of number 0.

    Raises ValueError when there are not as many numbers as spans.
    """
    pairs = zip(spans, numbers, strict=True)
    return [
        span if span.sequence_id == number else msgspec.structs.replace(span, sequence_id=number)
        for span, number in pairs
        if number
    ]


def _key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


def _with_any_rollout(annotation: Any) -> Any:
    """Replace `Rollout` by `AnyRollout` in an annotation, and the answer of a claim by `ClaimedRollout`."""
    shapes: dict[Any, Any] = {
        Rollout: AnyRollout,
        Rollout | None: AnyRollout | None,
        list[Rollout]: list[AnyRollout],
        Page[Rollout]: Page[AnyRollout],
        AttemptedRollout | None: ClaimedRollout | None,
        list[AttemptedRollout]: list[ClaimedRollout],
    }
    return shapes.get(annotation, annotation)


def _public(answer: Any) -> Any:
    """Return an answer with the interface's own types in the place of those from `_with_any_rollout`."""
    if isinstance(answer, AnyRollout):
        fields = {name: getattr(answer, name) for name in Rollout.__struct_fields__}
        return Rollout(**fields) if answer.attempt is None else AttemptedRollout(**fields, attempt=answer.attempt)
    if isinstance(answer, ClaimedRollout) and not answer.token:  # from a server that makes no tokens
        return AttemptedRollout(**{name: getattr(answer, name) for name in AttemptedRollout.__struct_fields__})
    if isinstance(answer, list):
        return [_public(item) for item in cast("list[Any]", answer)]
    if isinstance(answer, Page):
        page = cast("Page[Any]", answer)
        return msgspec.structs.replace(page, items=[_public(item) for item in page.items])
    return answer
