"""Empty prompts: records why a task has no row for VERL, and explains a batch without any row.

This module does not import VERL.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from leyden.core.algorithm.account import failures, lacking
from leyden.core.algorithm.learner import counts
from leyden.core.algorithm.verl.rows import PromptRows
from leyden.core.data.reasons import NO_REWARD, reason_of
from leyden.core.data.similar_messages import CountedMessage, Tally
from leyden.core.data.transition import TrajectoryGroup


class EmptyPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why no call of a task's rollouts can be trained."""

    rollouts: dict[str, int]
    """Number of rollouts without a trainable call, by the reason why."""
    calls: dict[str, int] = {}
    """Number of calls that cannot be trained, by the reason why; without those of rollouts that have no reward."""
    failures: tuple[CountedMessage, ...] = ()
    """Why rollouts failed."""


def empty_prompt_of(found: PromptRows, group: TrajectoryGroup) -> EmptyPrompt:
    """Return why `found`, which was made from `group`, has no row."""
    rollouts, calls = Counter(found.rollouts_left_out), Counter(found.calls_left_out)
    for trajectory in group.trajectories:
        calls.update(trajectory.excluded)
        if trajectory.reward is None and not trajectory.succeeded:
            rollouts.update([lacking(trajectory) or NO_REWARD])
            rollouts -= Counter({NO_REWARD: 1})
    return EmptyPrompt(rollouts=dict(rollouts), calls=dict(calls), failures=tuple(failures([group]).most_common()))


def empty_batch_message(step: int, tasks: Sequence[EmptyPrompt]) -> str:
    """Return the error message for a batch of `step` without a row: all counts, and what to change."""
    rollouts, calls, failed = Counter[str](), Counter[str](), Tally()
    for task in tasks:
        failed.include(task.failures)
        rollouts.update(task.rollouts)
        calls.update(task.calls)
    description = f"rollouts: {counts(rollouts)}" if rollouts else "no rollout has finished"
    description += f"; calls: {counts(calls)}" if calls else ""
    description += f"; failed: {failed.line()}" if failed.total else ""
    reasons = rollouts + calls
    most = next((reason for reason, _ in reasons.most_common() if reason_of(reason).change), None)
    advice = "" if most is None else f": {reason_of(most).change}"
    return (
        f"step {step} has nothing to learn from: no call of its {len(tasks)} tasks can be trained on "
        f"({description}){advice}"
    )
