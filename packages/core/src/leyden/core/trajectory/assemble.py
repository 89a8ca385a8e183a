"""Trajectory assembly: turns the spans of one attempt into its trajectory.

Invariant: every model call that the gateway recorded is either one transition, or listed once in `Trajectory.untrained`
with the reason why.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import cast

from leyden.core.data import semconv
from leyden.core.data.encoding.images import PromptImage, digest_of, unpack_images
from leyden.core.data.encoding.tokens import LogProbs, TokenIds, unpack_ids, unpack_log_probs
from leyden.core.data.failure import Failure, failure_of
from leyden.core.data.reasons import (
    BAD_LOGPROBS,
    CHOICE_NOT_USED,
    EMPTY_PROMPT,
    EMPTY_RESPONSE,
    IMAGE_NOT_RECORDED,
    NOT_RECORDED,
    NOT_SELECTED,
    SAMPLING_NOT_TRAINABLE,
    UNKNOWN_VERSION,
    why_not_trained,
)
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.sampling import Sampling, recorded_sampling
from leyden.core.data.span import Span
from leyden.core.data.transition import Outcome, Trajectory, Transition
from leyden.core.trajectory.calls import finish_reason, is_recorded_call
from leyden.core.trajectory.choices import unused_choices
from leyden.core.trajectory.outcomes import outcomes_by_call
from leyden.core.trajectory.select import Selector


class _Excluded(Exception):
    """A call that gives no transition; the text is one of `data.reasons`."""


def assemble(rollout: Rollout, attempt: Attempt, spans: Sequence[Span], select: Selector) -> Trajectory:
    """Return the trajectory of `attempt`: its recorded calls in the order of their start, and its last reward.

    Spans are numbered when they are stored, so the numbers of parallel calls follow the order of their ends. Calls are
    therefore sorted by their start on the gateway's clock, and equal starts by number. A call that continues another
    one started after its end, so both orders put it later. Spans of other attempts are ignored, so the spans of a whole
    rollout may be given. An attempt in which Leyden itself failed has no reward, because the last one may be missing
    from its record.
    """
    own = sorted((span for span in spans if span.attempt_id == attempt.attempt_id), key=lambda span: span.sequence_id)
    calls = sorted(filter(is_recorded_call, own), key=lambda span: span.start_time)
    unused = unused_choices(calls, own)
    files = _image_files(own) if any(semconv.PROMPT_IMAGES in span.attributes for span in calls) else {}
    by_id = {span.span_id: span for span in own}
    outcomes = outcomes_by_call([span for span in own if span.span_id not in unused])
    transitions: list[Transition] = []
    untrained: dict[str, str] = {}
    failure = failure_of(attempt)
    for span in calls:
        try:
            _check_wanted(span, select, by_id, unused, failure)
            transitions.append(_transition(span, outcomes[span.span_id], files))
        except _Excluded as reason:
            untrained[span.span_id] = str(reason)
    reward, dimensions = last_reward(own) if failure is None or failure.kind != "leyden" else (None, {})
    return Trajectory(
        rollout_id=rollout.rollout_id,
        attempt_id=attempt.attempt_id,
        transitions=tuple(transitions),
        reward=reward,
        dimensions=dimensions,
        succeeded=attempt.status == "succeeded",
        untrained=untrained,
        failure=failure,
    )


def _check_wanted(
    span: Span, select: Selector, by_id: Mapping[str, Span], unused: Set[str], failure: Failure | None
) -> None:
    if semconv.NOT_TRAINED in span.attributes:
        raise _Excluded(why_not_trained(str(span.attributes[semconv.NOT_TRAINED]), failure))
    if not select.selects(span, by_id):
        raise _Excluded(NOT_SELECTED)
    if span.span_id in unused:
        raise _Excluded(CHOICE_NOT_USED)


def _transition(span: Span, outcomes: tuple[Outcome, ...], files: Mapping[str, bytes]) -> Transition:
    sampling = _sampling(span)
    prompt_ids, response_ids, logprobs = _tokens(span)
    versions = _versions(span, len(response_ids))
    return Transition(
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        span_id=span.span_id,
        call_id=span.text(semconv.CALL_ID) or span.span_id,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        logprobs=logprobs,
        temperature=sampling.temperature,
        sampling=sampling if sampling.adjusts_logits or sampling.truncates else None,
        kept=_kept(span, sampling),
        images=_images(span, files, len(prompt_ids)),
        policy=span.text(semconv.POLICY) or "",
        version=versions[0][0],
        versions=versions,
        agent=span.text(semconv.AGENT_NAME),
        node=span.text(semconv.NODE),
        finish_reason=finish_reason(span),
        outcomes=outcomes,
    )


def _sampling(span: Span) -> Sampling:
    """Return how the tokens were sampled; a call whose record cannot be read is excluded as well."""
    sampling = recorded_sampling(span.attributes)
    if sampling is None or sampling.temperature <= 0:
        raise _Excluded(SAMPLING_NOT_TRAINABLE)
    return sampling


def _kept(span: Span, sampling: Sampling) -> bytes | None:
    """Return the packed sets of tokens that truncation left; a truncated call without them is excluded."""
    if not sampling.truncates:
        return None
    kept = span.attributes.get(semconv.SAMPLING_KEPT)
    if not isinstance(kept, bytes):
        raise _Excluded(SAMPLING_NOT_TRAINABLE)
    return kept


def _image_files(spans: Sequence[Span]) -> dict[str, bytes]:
    """Return the image files that an attempt recorded, by digest; a file that was changed is left out."""
    files: dict[str, bytes] = {}
    for span in spans:
        digest, data = span.attributes.get(semconv.IMAGE_DIGEST), span.attributes.get(semconv.IMAGE_DATA)
        if isinstance(digest, str) and isinstance(data, bytes) and digest_of(data) == digest:
            files[digest] = data
    return files


def _images(span: Span, files: Mapping[str, bytes], prompt_length: int) -> tuple[PromptImage, ...]:
    """Return the images of a call's prompt; a call with an image that was not recorded is excluded."""
    packed = span.attributes.get(semconv.PROMPT_IMAGES)
    if packed is None:
        return ()
    try:
        return unpack_images(str(packed), files, prompt_length)
    except (ValueError, KeyError):
        raise _Excluded(IMAGE_NOT_RECORDED) from None


def _tokens(span: Span) -> tuple[TokenIds, TokenIds, LogProbs]:
    packed = [span.attributes.get(key) for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.SAMPLING_LOGPROBS)]
    prompt, response, logprob = packed
    if not isinstance(prompt, bytes) or not isinstance(response, bytes):
        raise _Excluded(NOT_RECORDED)
    try:
        prompt_ids, response_ids = unpack_ids(prompt), unpack_ids(response)
        logprobs = unpack_log_probs(logprob) if isinstance(logprob, bytes) else None
    except ValueError:
        raise _Excluded(NOT_RECORDED) from None
    if not prompt_ids:
        raise _Excluded(EMPTY_PROMPT)
    if not response_ids:
        raise _Excluded(EMPTY_RESPONSE)
    if logprobs is None or len(logprobs) != len(response_ids) or not all(map(math.isfinite, logprobs)):
        raise _Excluded(BAD_LOGPROBS)
    return prompt_ids, response_ids, logprobs


def _versions(span: Span, tokens: int) -> tuple[tuple[int, int], ...]:
    """Return the versions that generated the response, and the number of tokens of each.

    Without such a record, one version generated all tokens.
    """
    first = span.attributes.get(semconv.POLICY_VERSION)
    if not isinstance(first, int):
        raise _Excluded(UNKNOWN_VERSION)
    flat = span.attributes.get(semconv.POLICY_VERSIONS, [first, tokens])
    if not isinstance(flat, list) or not all(isinstance(number, int) for number in flat):
        raise _Excluded(UNKNOWN_VERSION)
    numbers = cast("list[int]", flat)
    versions, counts = numbers[::2], numbers[1::2]
    if len(versions) != len(counts) or sum(counts) != tokens or min(counts) < 1 or versions[0] != first:
        raise _Excluded(UNKNOWN_VERSION)
    return tuple(zip(versions, counts, strict=True))


def last_reward(spans: Sequence[Span]) -> tuple[float | None, dict[str, float]]:
    """Return value and dimensions of the last reward span; a missing or non-finite value means None."""
    last = next((span for span in reversed(spans) if span.name == semconv.REWARD), None)
    if last is None:
        return None, {}
    prefix = semconv.REWARD_DIMENSION
    dimensions = {
        key.removeprefix(prefix): float(value)
        for key, value in last.attributes.items()
        if key.startswith(prefix) and isinstance(value, int | float)
    }
    value = last.attributes.get(semconv.REWARD_VALUE)
    reward = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    return reward, dimensions
