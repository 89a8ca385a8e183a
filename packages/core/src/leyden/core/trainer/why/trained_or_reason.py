"""Outcomes of rollouts: finds, for a rollout and its calls, the steps that learned from it or why none did.

Invariant: a rollout or call never has both steps and a reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leyden.core.data import semconv
from leyden.core.data.failure import NOT_STORED, Failure, failure_of
from leyden.core.data.production import INCOMPLETE
from leyden.core.data.reasons import (
    EARLIER_ATTEMPT,
    FAILED,
    FROZEN,
    HELD_OUT,
    INTERRUPTED,
    LOST_WEIGHTS,
    NEVER_BEGUN,
    NO_CALL,
    NO_CALL_LEFT,
    NO_REWARD,
    NO_STEP,
    NOT_RECORDED_WHY,
    REFUSED,
    REQUEUED,
    ROLLED_BACK,
    SAMPLING_NOT_TRAINABLE,
    UNFINISHED,
    UPSTREAM,
    failed_by,
)
from leyden.core.data.rollout import FINISHED_ROLLOUT, Attempt, AttemptedRollout, Rollout, RolloutStatus
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory
from leyden.core.trainer.context.discarded_versions import LOST
from leyden.core.trainer.rollouts.interrupted import ABANDONED
from leyden.core.trainer.why.learning import LearnedStep, Learning
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.select import Selector

NO_GATEWAY_WROTE = "had a model call record that no gateway wrote; it is not trained on"
"""Remark about such spans."""


class CallExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one model call."""

    span_id: str
    attempt: int
    """Number of the attempt that made it, counted from 1."""
    agent: str | None = None
    node: str | None = None
    steps: list[LearnedStep] = []
    reason: str | None = None
    detail: str = ""
    """Recorded detail of the reason, such as what the gateway refused."""
    moves: bool = True
    """False for a trained call with advantage 0."""
    answered_by: str | None = None
    """In a run without a policy: the endpoint that answered the call."""


class RolloutExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one rollout."""

    rollout_id: str
    status: RolloutStatus
    mode: str | None = None
    reward: float | None = None
    attempts: int = 0
    steps: list[LearnedStep] = []
    reason: str | None = None
    detail: str = ""
    """Recorded detail of the reason, such as the error that the agent raised."""
    remarks: list[str] = []
    """Other irregularities: earlier attempts, spans that were not stored, calls that were not recorded."""
    forged: list[str] = []
    """Ids of spans with a model call record that no gateway wrote; the record was removed from them."""
    calls: list[CallExplanation] = []

    def all_remarks(self) -> list[str]:
        """Return `remarks`, and a remark about the spans in `forged`."""
        if not self.forged:
            return self.remarks
        spans = "1 span" if len(self.forged) == 1 else f"{len(self.forged):,} spans"
        return [*self.remarks, f"{spans} {NO_GATEWAY_WROTE} (such as {self.forged[0]})"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about the run that a rollout belongs to."""

    learning: Learning | None
    """None: as far as is known, no run learns from the rollout's store."""
    selector: Selector = field(default_factory=Selector)
    runs_now: bool = False
    """Whether a process currently trains the run."""
    ended: str = ""
    """Why the run ended early, if it did."""
    is_own: bool = True
    """Whether the run made the rollout itself; False if it learns from stored rollouts of another source."""
    endpoint: str | None = None
    """Model or base URL that answers the agents of a run without a policy, whose calls are not trained."""
    objection: str | None = None
    """Reason why a run that learns from another store leaves the rollout out, whatever its content."""


def explain(
    rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span], facts: RunFacts
) -> RolloutExplanation:
    """Return the outcome of `rollout`. `attempts` must be in order; `spans` are those of all attempts."""
    latest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    failure = None if latest is None else failure_of(latest)
    trajectory = None if latest is None else assemble(rollout, latest, spans, facts.selector)
    steps = [] if facts.learning is None else facts.learning.steps.get(rollout.rollout_id, [])
    reason, detail = (None, "") if steps else _reason(rollout, failure, trajectory, facts)
    if trajectory is not None and reason == NO_CALL and latest is not None:
        detail = "; ".join(latest.metadata.get("silence", ()))
    return RolloutExplanation(
        rollout_id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        reward=None if trajectory is None else trajectory.reward,
        attempts=len(attempts),
        steps=steps,
        reason=reason,
        detail=detail,
        remarks=_remarks(attempts, failure if steps else None),
        forged=[span.span_id for span in spans if semconv.FORGED in span.attributes],
        calls=_calls(rollout, attempts, spans, trajectory, reason, facts),
    )


def _reason(
    rollout: Rollout, failure: Failure | None, trajectory: Trajectory | None, facts: RunFacts
) -> tuple[str | None, str]:
    """Return why no step learned from a rollout, and the recorded detail. The reason is None if none is known."""
    detail = "" if failure is None else failure.text
    exclusion = facts.objection or (HELD_OUT if rollout.mode in ("val", "test") else _open_reason(rollout, facts))
    if exclusion is not None:
        return exclusion, detail
    if facts.learning is None:
        return (None if failure is None else failed_by(failure)), detail
    if (step := facts.learning.rolled_back.get(rollout.rollout_id)) is not None:
        return ROLLED_BACK, f"{step}"
    recorded = facts.learning.reasons.get(rollout.rollout_id, [])
    reason = "; ".join(dict.fromkeys(recorded)) or _lacks(rollout, failure, trajectory, facts)
    if reason:
        return reason, detail
    if not facts.learning.is_recorded:
        return NOT_RECORDED_WHY, ""
    return NO_STEP, "the run is still running" if facts.runs_now else facts.ended


def _open_reason(rollout: Rollout, facts: RunFacts) -> str | None:
    """Return why a rollout that is unfinished, or that no step may learn from, was not trained; else None."""
    if rollout.metadata.get(ABANDONED):
        return INTERRUPTED
    if rollout.status in FINISHED_ROLLOUT:
        return LOST_WEIGHTS if rollout.metadata.get(LOST) else None
    if not isinstance(rollout, AttemptedRollout):
        return NEVER_BEGUN
    if not facts.runs_now and facts.learning is not None:
        return INTERRUPTED
    return REQUEUED if rollout.status == "requeuing" else UNFINISHED


def _lacks(rollout: Rollout, failure: Failure | None, trajectory: Trajectory | None, facts: RunFacts) -> str | None:
    if failure is not None:
        return failed_by(failure)
    if trajectory is None:
        return FAILED["cancelled"] if rollout.status == "cancelled" else NEVER_BEGUN
    if rollout.status == "cancelled":
        return FAILED["cancelled"]
    if trajectory.reward is None:
        return NO_REWARD
    if not trajectory.transitions and facts.endpoint is None:
        return NO_CALL_LEFT if trajectory.untrained else NO_CALL
    return None


def _remarks(attempts: Sequence[Attempt], failure: Failure | None) -> list[str]:
    found: list[str] = []
    for attempt in attempts[:-1]:
        earlier = failure_of(attempt)
        why = f"was {attempt.status}" if earlier is None else f"failed: {earlier.text}"
        found.append(f"attempt {attempt.sequence_id} {why}; the rollout was run again")
    if failure is not None:
        found.append(f"it was trained although it failed: {failure.text}")
    for attempt in attempts[-1:]:
        if attempt.metadata.get("capture") == INCOMPLETE:
            found.append("its capture is incomplete: a model call went to the agent's own provider unrecorded")
        lost: dict[str, Any] = attempt.metadata.get(NOT_STORED) or {}
        if lost:
            found.append(f"{lost.get('spans')} of its spans were not stored: {lost.get('reason')}")
    return found


def _calls(
    rollout: Rollout,
    attempts: Sequence[Attempt],
    spans: Sequence[Span],
    trajectory: Trajectory | None,
    reason: str | None,
    facts: RunFacts,
) -> list[CallExplanation]:
    """Return the outcomes of the recorded calls, in the order they were made."""
    learning = facts.learning
    numbers = {attempt.attempt_id: attempt.sequence_id for attempt in attempts}
    latest = attempts[-1].attempt_id if attempts else None
    found: list[CallExplanation] = []
    for span in sorted(filter(is_recorded_call, spans), key=lambda span: (span.start_time, span.sequence_id)):
        steps: list[LearnedStep] = []
        if span.attempt_id != latest:
            why: str | None = EARLIER_ATTEMPT
        else:
            unfit = None if trajectory is None else trajectory.untrained.get(span.span_id)
            # a run that learns from stored rollouts may imitate calls that are unfit for training
            if learning is not None and (unfit is None or not facts.is_own):
                steps = learning.of_call(rollout.rollout_id, span.span_id)
            if reason == HELD_OUT and unfit == SAMPLING_NOT_TRAINABLE:  # an evaluation samples as it is asked to
                unfit = None
            own = None if learning is None else learning.why_not(span.span_id)
            why = None if steps else own or unfit or reason
        if facts.endpoint is not None:  # calls are answered, or were lost with their client
            steps, why = [], None if why in (UPSTREAM, FROZEN, EARLIER_ATTEMPT) else why
        found.append(
            CallExplanation(
                span_id=span.span_id,
                attempt=numbers.get(span.attempt_id, 0),
                agent=span.text(semconv.AGENT_NAME),
                node=span.text(semconv.NODE),
                steps=steps,
                reason=why,
                detail=_refusal(span) if why == REFUSED or span.status.code == "error" else "",
                moves=learning is None or span.span_id not in learning.unmoved,
                answered_by=facts.endpoint if why is None else None,
            )
        )
    return found


def _refusal(span: Span) -> str:
    return " ".join((span.status.description or "").split())
