"""Spans that the runner writes about an attempt: the agent's result, its reward, its exception."""

import asyncio
import reprlib
import secrets
import time
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.failure import Failure
from leyden.core.data.plain.own_methods import short_name, type_name
from leyden.core.data.plain.reading import FULL, QUICK, OverLimits, ReadingLimits
from leyden.core.data.plain.recorded_form import FULL_FORM, QUICK_FORM, FormLimits, recorded_form
from leyden.core.data.plain.values import PlainResult, message_of, plain, stack_of
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.runner.user_code.reward import Reward
from leyden.core.tracing.context import OpenAttempt

RESULT_CHARACTERS = 2000
STACK_CHARACTERS = 8000

_SHORT = reprlib.Repr()
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 20
_SHORT.maxstring = _SHORT.maxother = 500


async def result_span(attempt: OpenAttempt, result: Any, began: float, final_output: Any = None) -> Span:
    """Return a span from the agent's start to now, with the agent's result, and its `final_output` if it has one.

    The span also has the result's recorded form, so that another reward can score it later. A result that takes long to
    read, or whose reading calls an object's own methods, is read in another thread.
    """
    try:
        kept = shortened(result, QUICK)
    except OverLimits:
        kept = await asyncio.to_thread(shortened, result)
    attributes: Attributes = {semconv.RESULT: kept.value}
    if kept.reasons:
        attributes[semconv.REDUCED] = kept.reasons
    if final_output is not None:
        attributes[semconv.FINAL_OUTPUT] = (await asyncio.to_thread(shortened, final_output)).value
    attributes |= await _form(result, is_whole=type(result) is str and not kept.reasons)
    return _span(attempt, semconv.RESULT, attributes, SpanStatus(code="ok"), began)


async def _form(result: Any, *, is_whole: bool) -> Attributes:
    """Return the attributes with the type and the recorded form of a result.

    `is_whole`: the result is a text, and `semconv.RESULT` has all of it.
    """
    if is_whole:
        return {semconv.RESULT_TYPE: "str"}
    try:
        return _form_within(result, QUICK_FORM)
    except OverLimits:
        return await asyncio.to_thread(_form_within, result, FULL_FORM)


def _form_within(result: Any, limits: FormLimits) -> Attributes:
    form = recorded_form(result, limits)
    kept: Attributes = {semconv.RESULT_NOT_KEPT: form.reason} if form.text is None else {semconv.RESULT_FORM: form.text}
    return {semconv.RESULT_TYPE: type_name(result), **kept}


def failed_span(attempt: OpenAttempt, began: float, failure: Failure) -> Span:
    """Return a span from the agent's start to now, with the reason why there is no result."""
    status = SpanStatus(code="error", description=failure.metadata()["message"])
    return _span(attempt, semconv.RESULT, {semconv.ERROR_TYPE: failure.type}, status, began)


def reward_span(attempt: OpenAttempt, reward: Reward) -> Span:
    """Return a span with a reward's value, its dimensions and its feedback."""
    parts = {f"{semconv.REWARD_DIMENSION}{name}": value for name, value in reward.dimensions.items()}
    feedback = {semconv.REWARD_FEEDBACK: reward.feedback} if reward.feedback else {}
    return _span(attempt, semconv.REWARD, {semconv.REWARD_VALUE: reward.value, **parts, **feedback})


def emitted_value(span: Span) -> object:
    """Return the dimensions of a reward span, or its value where it has no dimensions."""
    prefix = semconv.REWARD_DIMENSION
    parts = {key.removeprefix(prefix): part for key, part in span.attributes.items() if key.startswith(prefix)}
    return parts or span.attributes.get(semconv.REWARD_VALUE)


async def exception_span(attempt: OpenAttempt, error: BaseException, message: str) -> Span:
    """Return a span with an exception's class, message and stack trace."""
    stack = await asyncio.to_thread(stack_of, error)
    attributes: Attributes = {
        semconv.ERROR_TYPE: short_name(error),
        semconv.STACK_TRACE: stack[-STACK_CHARACTERS:],
    }
    return _span(attempt, semconv.EXCEPTION, attributes, SpanStatus(code="error", description=message))


def shortened(result: Any, limits: ReadingLimits = FULL) -> PlainResult:
    """Return a result as text of at most `RESULT_CHARACTERS`: a string as it is, any other value as its `repr`."""
    found, reasons = plain(result, semconv.RESULT, limits)
    text = found if type(found) is str else _SHORT.repr(found)
    if len(text) > RESULT_CHARACTERS:
        reasons = [*reasons, f"{semconv.RESULT}: {RESULT_CHARACTERS} of {len(text)} characters are kept"]
        text = f"{text[:RESULT_CHARACTERS]}…"
    return PlainResult(text, reasons)


def text_of(error: BaseException) -> str:
    """Return an exception's message, cut to `RESULT_CHARACTERS`."""
    return message_of(error, RESULT_CHARACTERS)


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
