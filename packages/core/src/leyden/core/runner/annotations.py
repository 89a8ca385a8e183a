"""Spans that the runner itself writes: what the agent returned, its reward, what it raised."""

import reprlib
import secrets
import time
import traceback
from dataclasses import dataclass
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.data.text import well_formed
from leyden.core.runner.reward import Reward
from leyden.core.tracing.context import OpenAttempt

RESULT_CHARACTERS = 2000
STACK_CHARACTERS = 8000

_SHORT = reprlib.Repr()
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 20
_SHORT.maxstring = _SHORT.maxother = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not succeed, as its metadata keeps it under `error`."""

    kind: str
    """`agent`, `timeout`, `reward`, `input`, `cancelled` (by whoever waits for it) or `worker` (its process died)."""
    type: str
    message: str

    def metadata(self) -> dict[str, str]:
        """As the attempt's metadata."""
        return {"kind": self.kind, "type": self.type, "message": self.message}


def result_span(attempt: OpenAttempt, result: Any, began: float, failure: Failure | None) -> Span:
    """The time from the agent's start to now, and what the agent returned or why it did not."""
    attributes: Attributes = {}
    status = SpanStatus(code="ok")
    if failure is not None:
        attributes[semconv.ERROR_TYPE] = failure.type
        status = SpanStatus(code="error", description=failure.message)
    else:
        attributes[semconv.RESULT] = shortened(result)
    return _span(attempt, semconv.RESULT, attributes, status, began)


def reward_span(attempt: OpenAttempt, reward: Reward) -> Span:
    """A reward and its dimensions."""
    parts = {f"{semconv.REWARD_DIMENSION}{name}": value for name, value in reward.dimensions.items()}
    return _span(attempt, semconv.REWARD, {semconv.REWARD_VALUE: reward.value, **parts})


def emitted_value(span: Span) -> object:
    """What a reward span says: its dimensions, or its value where it has none."""
    prefix = semconv.REWARD_DIMENSION
    parts = {key.removeprefix(prefix): part for key, part in span.attributes.items() if key.startswith(prefix)}
    return parts or span.attributes.get(semconv.REWARD_VALUE)


def exception_span(attempt: OpenAttempt, error: BaseException) -> Span:
    """What was raised, and where."""
    stack = "".join(traceback.format_exception(error))
    attributes: Attributes = {
        semconv.ERROR_TYPE: type(error).__qualname__,
        "exception.stacktrace": stack[-STACK_CHARACTERS:],
    }
    return _span(attempt, semconv.EXCEPTION, attributes, SpanStatus(code="error", description=text_of(error)))


def shortened(result: Any) -> str:
    """A result as text of at most `RESULT_CHARACTERS`; never raises."""
    try:
        text = result if isinstance(result, str) else _SHORT.repr(result)
    except Exception as error:  # the agent's own __repr__
        text = f"<{type(result).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= RESULT_CHARACTERS else f"{text[:RESULT_CHARACTERS]}…"


def text_of(error: BaseException) -> str:
    """An exception's message as text of at most `RESULT_CHARACTERS`; never raises."""
    try:
        return well_formed(str(error)[:RESULT_CHARACTERS])
    except Exception as broken:  # the exception's own __str__
        return f"<{type(error).__name__} whose str raised {type(broken).__name__}>"


def _span(
    attempt: OpenAttempt,
    name: str,
    attributes: Attributes,
    status: SpanStatus | None = None,
    began: float | None = None,
) -> Span:
    now = time.time()
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=0,
        trace_id=attempt.trace_id,
        span_id=secrets.token_hex(8),
        name=name,
        status=status or SpanStatus(),
        attributes=attributes,
        start_time=now if began is None else began,
        end_time=now,
    )
