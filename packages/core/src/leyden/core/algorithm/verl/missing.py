"""`Missing`: why VERL can be given nothing of a task; and what to say where that is so of a whole batch.

Imports nothing of VERL.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from leyden.core.algorithm.learner import counts
from leyden.core.algorithm.verl.rows import NO_CALL, NO_REWARD, PromptRows
from leyden.core.data.transition import TrajectoryGroup

FAILED = "failed"
"""A rollout without a reward whose agent raised, timed out or lost its worker."""
ADVICE: Mapping[str, str] = {
    "prompt over the limit": "raise data.max_prompt_length",
    "response over the limit": "raise data.max_response_length, or have the agent ask for fewer tokens",
    "uncredited": "choose another leyden.credit",
    "not selected": "choose with --agent-match and the like calls that the agent makes",
    FAILED: "see in agents.log and with `leyden show` what the agent raises",
    NO_REWARD: "have the reward function score what the agent returns",
    NO_CALL: "see with `leyden show` what the agent does in the place of calling the policy",
}
"""What to change, by the reason that is met most."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task's rollouts of which no call can be trained."""

    rollouts: dict[str, int]
    """By the reason why they have no call."""
    calls: dict[str, int] = {}
    """By the reason why they cannot be trained; those of rollouts without a reward are not among them."""


def missing(found: PromptRows, group: TrajectoryGroup) -> Missing:
    """Return why `found`, which was made of `group`, has no row."""
    rollouts, calls = Counter(found.rollouts_left_out), Counter(found.calls_left_out)
    if failed := sum(one.reward is None and not one.succeeded for one in group.trajectories):
        rollouts += Counter({FAILED: failed})
        rollouts -= Counter({NO_REWARD: failed})
    for one in group.trajectories:
        calls.update(one.excluded)
    return Missing(rollouts=dict(rollouts), calls=dict(calls))


def complaint(step: int, tasks: Sequence[Missing]) -> str:
    """Return what to say of a batch of `step` that has no row: all counts, and what to change."""
    rollouts, calls = Counter[str](), Counter[str]()
    for task in tasks:
        rollouts.update(task.rollouts)
        calls.update(task.calls)
    told = f"rollouts: {counts(rollouts)}" if rollouts else "no rollout has finished"
    told += f"; calls: {counts(calls)}" if calls else ""
    every = rollouts + calls
    most = max(ADVICE, key=lambda reason: every[reason])
    advice = f": {ADVICE[most]}" if every[most] else ""
    return f"step {step} has nothing to learn from, no call of {len(tasks)} tasks can be trained ({told}){advice}"
