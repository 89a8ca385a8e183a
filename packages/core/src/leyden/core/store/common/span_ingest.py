"""Storing of spans, as steps within one transaction: numbers, duplicates, heartbeats and revival of attempts."""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from leyden.core.data.plain.spans import MOST_NUMBERS
from leyden.core.data.rollout import FINISHED_ATTEMPT, FINISHED_ROLLOUT
from leyden.core.data.span import MOST_BYTES, Span
from leyden.core.errors import CallRefused, IllegalMove, NotFound
from leyden.core.store import health_check, state_and_retry_rules
from leyden.core.store.common.lifecycle import change_attempt, missing_attempt, require_rollout
from leyden.core.store.common.rows import AttemptKey, Changes, Rows, SpanKey, SpanTarget
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.common.span_entry import too_large

logger = logging.getLogger(__name__)


def next_numbers(rows: Rows, rollout_ids: Sequence[str]) -> list[int]:
    """Reserve and return the next span number of each rollout, in order. Raises NotFound."""
    counters = rows.span_counters(list(dict.fromkeys(rollout_ids)))
    numbers: list[int] = []
    for rollout_id in rollout_ids:
        if rollout_id not in counters:
            raise NotFound(f"there is no rollout {rollout_id}")
        counters[rollout_id] += 1
        numbers.append(counters[rollout_id])
    rows.record_numbers(counters)
    return numbers


def add_spans(
    rows: Rows, batches: Sequence[Sequence[Span]], recent_calls: RecentCalls, size: int | None = None
) -> list[list[Span] | Exception]:
    """Store several callers' spans; return for each caller its stored spans, or the error where none was stored.

    After the commit, the caller adds the stored spans to `recent_calls`. `size` is the approximate size of all spans in
    bytes, or None.
    """
    spans = [span for batch in batches for span in batch]
    targets = rows.span_targets(list({(span.rollout_id, span.attempt_id): None for span in spans}))
    problems = [problem(batch, targets, size, partial(missing_attempt, rows)) for batch in batches]
    accepted = [batch for batch, wrong in zip(batches, problems, strict=True) if wrong is None]
    stored = iter(_store(rows, accepted, targets, recent_calls))
    return [next(stored) if wrong is None else wrong for wrong in problems]


def drop(rows: Rows, rollout_id: str) -> int:
    """Remove the spans of a finished rollout and return how many there were; their numbers are not reused.

    Raises NotFound or IllegalMove.
    """
    row = require_rollout(rows, rollout_id)
    if row.status not in FINISHED_ROLLOUT:
        raise IllegalMove(f"rollout {rollout_id} is {row.status}, and only spans of a finished rollout can be removed")
    rows.record_numbers(rows.span_counters([rollout_id]))
    return rows.delete_spans(rollout_id)


def _store(
    rows: Rows, batches: Sequence[Sequence[Span]], targets: Mapping[AttemptKey, SpanTarget], recent_calls: RecentCalls
) -> list[list[Span]]:
    seen = rows.stored_spans([_key(span) for batch in batches for span in batch])
    counters = {rollout_id: target.span_counter for (rollout_id, _), target in targets.items()}
    answers: list[list[Span]] = []
    for batch in batches:
        new_spans = _new_spans(batch, seen)
        answers.append([_numbered(span, counters) for span in new_spans])
    new = [span for answer in answers for span in answer]
    made = recent_calls.rows((span, _may_be_dropped(targets[_key(span)[:2]])) for span in new)
    # Heartbeats first: a stored span's time may serve as the heartbeat only until another span follows.
    _heartbeats(rows, list({(span.rollout_id, span.attempt_id): None for span in new}), targets)
    rows.insert_spans(made)
    return answers


def _may_be_dropped(target: SpanTarget) -> bool:
    """Whether earlier spans of the attempt may be removed already, so that no row may refer to them."""
    return target.rollout_status in FINISHED_ROLLOUT or target.status in FINISHED_ATTEMPT


def _new_spans(batch: Sequence[Span], seen: set[SpanKey]) -> list[Span]:
    new_spans: list[Span] = []
    for span in batch:
        key = _key(span)
        if key not in seen:
            seen.add(key)
            new_spans.append(span)
    if len(new_spans) < len(batch):
        names = Counter(span.rollout_id for span in batch) - Counter(span.rollout_id for span in new_spans)
        logger.error("spans that are already stored were ignored, by rollout: %s", dict(names))
    return new_spans


def _numbered(span: Span, counters: dict[str, int]) -> Span:
    if span.sequence_id == 0:
        span = replace(span, sequence_id=counters[span.rollout_id] + 1)
    counters[span.rollout_id] = max(counters[span.rollout_id], span.sequence_id)
    return span


def _heartbeats(rows: Rows, keys: Sequence[AttemptKey], targets: Mapping[AttemptKey, SpanTarget]) -> None:
    """Record heartbeats of the attempts, and revive those whose status a span changes, which is rare."""
    moved = [key for key in keys if _is_moved_by_span(targets[key])]
    beating = [key for key in keys if key not in moved]
    if beating:
        rows.record_heartbeats(beating)
    _revive(rows, moved)


def _is_moved_by_span(target: SpanTarget) -> bool:
    is_latest = target.sequence_id == target.attempts
    if not is_latest and target.rollout_status in FINISHED_ROLLOUT:
        return False  # another attempt has replaced it, and the rollout has finished
    return state_and_retry_rules.attempt_after_span(target.status) != target.status or (
        is_latest and target.rollout_status == "preparing"
    )


def _revive(rows: Rows, keys: Sequence[AttemptKey]) -> None:
    left: list[AttemptKey] = list(keys)
    while left:
        # One attempt of each rollout at a time, since it may change the rollout's status, on which the next one
        # depends.
        turn: dict[str, AttemptKey] = {
            rollout_id: (rollout_id, attempt_id) for rollout_id, attempt_id in reversed(left)
        }
        rollouts, attempts = rows.rollouts(list(turn)), rows.attempts(list(turn.values()))
        for key in turn.values():
            row, attempt = rollouts[key[0]], attempts[key]
            changes: Changes = {
                "last_heartbeat_time": health_check.latest_heartbeat(attempt.last_heartbeat_time, rows.now)
            }
            status = state_and_retry_rules.attempt_after_span(attempt.status)
            if status != attempt.status:
                changes["status"] = status
            change_attempt(
                rows, row, attempt, changes, state_and_retry_rules.rollout_after_span(row.status, attempt.status)
            )
        left = [key for key in left if turn[key[0]] != key]


def _no_attempt(rollout_id: str, attempt_id: str) -> NotFound:
    return NotFound(f"there is no attempt {attempt_id} of rollout {rollout_id}")


def problem(
    batch: Iterable[Span],
    attempts: Container[AttemptKey],
    size: int | None = None,
    missing: Callable[[str, str], NotFound] = _no_attempt,
) -> Exception | None:
    """Return the error for spans that cannot be stored, otherwise None; `attempts` are the existing ones.

    `size` is the approximate size of all spans in bytes, or None. `missing` returns the error for a missing attempt.
    """
    may_be_large = size is None or 4 * size > MOST_BYTES  # UTF-8 has at most four bytes for a character
    for span in batch:
        if (span.rollout_id, span.attempt_id) not in attempts:
            return missing(span.rollout_id, span.attempt_id)
        if not 0 <= span.sequence_id < MOST_NUMBERS:
            return CallRefused(f"span {span.span_id} has sequence id {span.sequence_id}; numbers start at 1")
        if may_be_large and (large := too_large(span)) is not None:
            return large
    return None


def _key(span: Span) -> SpanKey:
    return (span.rollout_id, span.attempt_id, span.span_id)
