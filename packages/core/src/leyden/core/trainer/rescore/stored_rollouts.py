"""Stored rollouts: what a run's store has of each rollout that a reward can be given, and why it has not more."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from leyden.core.data import semconv
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, Rollout, RolloutMode
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.rollouts.recorded import group_of
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

PAGE = 1000
"""Number of rollouts per query. Spans are queried for each rollout."""

Which = Literal["train", "held-out", "all"]
"""Which rollouts of a run are read."""
OLDER_VERSION = "recorded by an earlier version of Leyden, which kept only a shortened text of results"
NO_RESULT = "the agent returned no result"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """One finished rollout, as its last attempt left it."""

    rollout_id: str
    mode: RolloutMode | None
    group: str
    """Key of the rollouts of the same task in the same batch; empty for held-out rollouts."""
    task: Any
    result: str | None
    """Recorded form of the agent's result; None where the store does not have all of it."""
    obstacle: str = ""
    """Why a reward cannot score the rollout; empty where it can."""
    trajectory: Trajectory
    """Its trained calls, and the stored reward."""

    @property
    def reward(self) -> float | None:
        """The stored reward; None without one."""
        return self.trajectory.reward

    @property
    def dimensions(self) -> Mapping[str, float]:
        """The stored dimensions of the reward."""
        return self.trajectory.dimensions


def check_which(which: str) -> Which:
    """Return `which`; raises UsageError for another word."""
    if which not in get_args(Which):
        raise UsageError(f"--rollouts must be one of {', '.join(get_args(Which))}, not {which!r}")
    return cast("Which", which)


async def stored_rollouts(
    store: LightningStore, selector: Selector, which: Which, limit: int | None = None
) -> AsyncGenerator[StoredRollout]:
    """Yield the finished rollouts of a store in order of creation: at most `limit`, and the rest of the last group."""
    found, offset, group = 0, 0, ""
    while page := (await store.query_rollouts(limit=PAGE, offset=offset)).complete().items:
        offset += len(page)
        for rollout in page:
            if not _is_wanted(rollout, which) or not isinstance(rollout, AttemptedRollout):
                continue
            if limit is not None and found >= limit and (not group or group_of(rollout) != group):
                return
            found, group = found + 1, group_of(rollout)
            spans = (await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)).items
            yield stored_rollout(rollout, spans, selector)


def stored_rollout(rollout: AttemptedRollout, spans: Sequence[Span], selector: Selector) -> StoredRollout:
    """Return what the spans of a rollout's last attempt have for a reward."""
    result, obstacle = stored_result(spans)
    return StoredRollout(
        rollout_id=rollout.rollout_id,
        mode=rollout.mode,
        group=group_of(rollout),
        task=rollout.input,
        result=result,
        obstacle=_task_obstacle(rollout) or obstacle,
        trajectory=assemble(rollout, rollout.attempt, spans, selector),
    )


def stored_result(spans: Sequence[Span]) -> tuple[str | None, str]:
    """Return the recorded form of the agent's result, or None and the reason why there is none."""
    span = next((span for span in reversed(spans) if span.name == semconv.RESULT), None)
    if span is None or semconv.RESULT not in span.attributes:
        return None, NO_RESULT
    kind, text, form = (
        span.attributes.get(name) for name in (semconv.RESULT_TYPE, semconv.RESULT, semconv.RESULT_FORM)
    )
    if kind is None:
        return None, OLDER_VERSION
    if (why := span.attributes.get(semconv.RESULT_NOT_KEPT)) is not None:
        return None, f"the result was a {kind}, of which the store has its text only: {why}"
    if _is_reduced(span):
        return None, f"the result, a {kind}, was shortened in the store"
    if form is None and kind == "str":
        return json.dumps(text), ""
    return (str(form), "") if form is not None else (None, f"the result was a {kind}, and its record is incomplete")


def _is_reduced(span: Span) -> bool:
    """Whether the store shortened the recorded form or, for a text, the text itself."""
    name = semconv.RESULT_FORM if semconv.RESULT_FORM in span.attributes else semconv.RESULT
    reasons = span.attributes.get(semconv.REDUCED)
    return isinstance(reasons, list) and any(str(why).startswith(f"attributes.{name}:") for why in reasons)


def _task_obstacle(rollout: Rollout) -> str:
    reasons = rollout.metadata.get(semconv.REDUCED)
    of_task = [str(why) for why in cast("list[Any]", reasons)] if isinstance(reasons, list) else []
    found = next((why for why in of_task if why.startswith("input")), None)
    return "" if found is None else f"the store does not have the whole task: {found}"


def _is_wanted(rollout: Rollout, which: Which) -> bool:
    is_held_out = rollout.mode in ("val", "test")
    wanted = which == "all" or is_held_out == (which == "held-out")
    return wanted and rollout.status in FINISHED_ROLLOUT
