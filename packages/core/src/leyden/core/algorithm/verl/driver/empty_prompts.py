"""`Missing`: why VERL can be given nothing of a task; and what to say where that is so of a whole batch.

Imports nothing of VERL.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from leyden.core.algorithm.account import failures, lacking
from leyden.core.algorithm.learner import counts
from leyden.core.algorithm.verl.rows import PromptRows
from leyden.core.data.reasons import NO_REWARD, reason_of
from leyden.core.data.tally import Counted, Tally
from leyden.core.data.transition import TrajectoryGroup


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task's rollouts of which no call can be trained."""

    rollouts: dict[str, int]
    """By the reason why they have no call."""
    calls: dict[str, int] = {}
    """By the reason why they cannot be trained; those of rollouts without a reward are not among them."""
    failures: tuple[Counted, ...] = ()
    """Why rollouts failed."""


def missing(found: PromptRows, group: TrajectoryGroup) -> Missing:
    """Return why `found`, which was made of `group`, has no row."""
    rollouts, calls = Counter(found.rollouts_left_out), Counter(found.calls_left_out)
    for one in group.trajectories:
        calls.update(one.excluded)
        if one.reward is None and not one.succeeded:
            rollouts.update([lacking(one) or NO_REWARD])
            rollouts -= Counter({NO_REWARD: 1})
    return Missing(rollouts=dict(rollouts), calls=dict(calls), failures=tuple(failures([group]).most_common()))


def complaint(step: int, tasks: Sequence[Missing]) -> str:
    """Return what to say of a batch of `step` that has no row: all counts, and what to change."""
    rollouts, calls, failed = Counter[str](), Counter[str](), Tally()
    for task in tasks:
        failed.include(task.failures)
        rollouts.update(task.rollouts)
        calls.update(task.calls)
    told = f"rollouts: {counts(rollouts)}" if rollouts else "no rollout has finished"
    told += f"; calls: {counts(calls)}" if calls else ""
    told += f"; failed: {failed.line()}" if failed.total else ""
    every = rollouts + calls
    most = next((reason for reason, _ in every.most_common() if reason_of(reason).change), None)
    advice = "" if most is None else f": {reason_of(most).change}"
    return f"step {step} has nothing to learn from, no call of {len(tasks)} tasks can be trained ({told}){advice}"
