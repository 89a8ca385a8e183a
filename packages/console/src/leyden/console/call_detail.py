"""One model call in full: its messages, and every token with what it was sampled with and what was learned from it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from leyden.console.plain import plain
from leyden.console.rollout_detail import versions_of
from leyden.console.vocabulary import Vocabulary
from leyden.core.data import semconv
from leyden.core.data.encoding.token_sets import unpack_token_sets
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.span import Span
from leyden.core.policy.update.entries import Floats
from leyden.core.policy.update.token_record import CallTokens, PolicyTokens, TokenRecord, calls_of
from leyden.core.trajectory.messages import read_messages

Numbers = list[float | None]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens with their texts; `texts` is empty without a vocabulary."""

    ids: list[int]
    texts: list[str]


class ResponseTokens(Tokens, frozen=True, kw_only=True):
    """Tokens that the policy generated. A list of numbers is empty where they were not recorded."""

    logprobs: Numbers
    """At temperature 1, with nothing left out."""
    sampled_logprobs: Numbers
    """Under the distribution that the token was sampled from."""
    versions: list[int]
    """Policy version that generated each token."""
    allowed: list[int | None]
    """Number of tokens that truncation left at each place."""


class TrainedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one step computed for the tokens of a call."""

    step: int
    policy: str
    optimizer_steps: int
    loss: float
    """The logged loss of the step."""
    share: float
    """Sum of the losses of this call's tokens, which is its part of the logged loss."""
    logprobs: Numbers
    ratios: Numbers
    advantages: Numbers
    weights: Numbers
    losses: Numbers
    clipped: list[bool]
    masked: list[bool]
    """Tokens that a correction left out of the loss; their other numbers are None."""
    entropy: Numbers


class CallTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A trained call in the list of its step."""

    rollout: str
    attempt: str
    span: str
    tokens: int
    share: float
    advantage: float | None
    """Mean over its tokens."""


class StepTotal(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy was trained on in a step: the losses of all tokens add up to the logged loss."""

    loss: float
    sum: float
    optimizer_steps: int
    tokens: int
    calls: list[CallTotal]


def response_of(span: Span, vocabulary: Vocabulary | None) -> ResponseTokens:
    """Return the tokens that the call generated."""
    attributes = span.attributes
    ids = _ids(attributes, semconv.RESPONSE_IDS)
    return ResponseTokens(
        ids=ids,
        texts=[] if vocabulary is None else vocabulary.texts(ids),
        logprobs=_logprobs(attributes, semconv.RESPONSE_LOGPROBS, len(ids)),
        sampled_logprobs=_logprobs(attributes, semconv.SAMPLING_LOGPROBS, len(ids)),
        versions=_version_of_each(span, len(ids)),
        allowed=_allowed(attributes, len(ids)),
    )


def prompt_of(span: Span, vocabulary: Vocabulary | None) -> Tokens:
    """Return the tokens that the policy read; none of them was trained."""
    ids = _ids(span.attributes, semconv.PROMPT_IDS)
    return Tokens(ids=ids, texts=[] if vocabulary is None else vocabulary.texts(ids))


def messages_of(span: Span) -> dict[str, Any]:
    """Return the messages of the call, its tools and its sampling, as far as they were recorded."""
    attributes = span.attributes
    return {
        "messages": plain(read_messages(attributes.get(semconv.INPUT_MESSAGES))),
        "answer": plain(read_messages(attributes.get(semconv.OUTPUT_MESSAGES))),
        "tools": plain(read_messages(attributes.get(semconv.TOOL_DEFINITIONS))),
        "sampling": {
            "asked": _object(attributes.get(semconv.SAMPLING_ASKED)),
            "used": _object(attributes.get(semconv.SAMPLING_USED)),
        },
        "left_out": [line for line in str(attributes.get(semconv.LEFT_OUT, "")).splitlines() if line],
    }


def trained_in(step: int, record: TokenRecord, span: Span) -> list[TrainedTokens]:
    """Return what a step computed for the tokens of a call; several of an algorithm with sides."""
    return [_trained(step, name, own, call) for name, own, call in calls_of(record, span.attempt_id, span.span_id)]


def step_totals(record: TokenRecord) -> dict[str, StepTotal]:
    """Return for each policy of a step its calls, and the sum of their losses."""
    return {name: _total(own) for name, own in record.items()}


def _trained(step: int, name: str, own: PolicyTokens, call: CallTokens) -> TrainedTokens:
    numbers = call.numbers()
    masked_T = numbers.weights == 0.0

    def shown(values_T: Floats) -> Numbers:
        hidden_T = masked_T | ~np.isfinite(values_T)
        return [None if hidden else value for value, hidden in zip(values_T.tolist(), hidden_T.tolist(), strict=True)]

    return TrainedTokens(
        step=step,
        policy=name,
        optimizer_steps=own.optimizer_steps,
        loss=own.loss,
        share=float(numbers.losses.sum()),
        logprobs=shown(numbers.logprobs),
        ratios=shown(np.exp(numbers.log_ratios)),
        advantages=shown(numbers.advantages),
        weights=shown(numbers.weights),
        losses=shown(numbers.losses),
        clipped=[bool(one) for one in numbers.clipped],
        masked=masked_T.tolist(),
        entropy=shown(numbers.entropy),
    )


def _total(own: PolicyTokens) -> StepTotal:
    calls: list[CallTotal] = []
    for call in own.calls:
        numbers = call.numbers()
        calls.append(
            CallTotal(
                rollout=call.rollout_id,
                attempt=call.attempt_id,
                span=call.span_id,
                tokens=len(numbers.losses),
                share=float(numbers.losses.sum()),
                advantage=float(numbers.advantages.mean()) if len(numbers.advantages) else None,
            )
        )
    return StepTotal(
        loss=own.loss,
        sum=float(sum(call.share for call in calls)),
        optimizer_steps=own.optimizer_steps,
        tokens=sum(call.tokens for call in calls),
        calls=calls,
    )


def _ids(attributes: Mapping[str, Any], name: str) -> list[int]:
    data = attributes.get(name)
    try:
        return list(unpack_ids(data)) if isinstance(data, bytes) else []
    except ValueError:
        return []


def _logprobs(attributes: Mapping[str, Any], name: str, count: int) -> Numbers:
    data = attributes.get(name)
    try:
        values: Sequence[float] = unpack_log_probs(data) if isinstance(data, bytes) else []
    except ValueError:
        return []
    return [value if np.isfinite(value) else None for value in values] if len(values) == count else []


def _version_of_each(span: Span, count: int) -> list[int]:
    """Return the version that generated each of `count` tokens; empty where the record does not say it."""
    found = [version for version, tokens in versions_of(span, count) for _ in range(tokens)]
    return found if len(found) == count else []


def _allowed(attributes: Mapping[str, Any], count: int) -> list[int | None]:
    kept = attributes.get(semconv.SAMPLING_KEPT)
    if not isinstance(kept, bytes) or not count:
        return []
    try:
        bits_TW = unpack_token_sets(kept, count)
    except ValueError:
        return []
    return [int(one) for one in np.bitwise_count(bits_TW.view(np.uint32)).sum(axis=1)]


def _object(value: object) -> Any:
    try:
        return msgspec.json.decode(value) if isinstance(value, str | bytes) else None
    except msgspec.DecodeError:
        return None
