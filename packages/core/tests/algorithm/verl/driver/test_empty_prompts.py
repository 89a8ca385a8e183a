"""What is said of a batch that VERL can learn nothing from."""

import pytest

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.verl.driver.empty_prompts import EmptyPrompt, empty_batch_message, empty_prompt_of
from leyden.core.algorithm.verl.rows import RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data.reasons import reason_of
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.testing.factories import trajectory, transition

CALL = transition([1, 2], [3, 4], [-0.5, -1.0], agent="a")
LIMITS = RowLimits(prompt=8, response=4)


def why(*rollouts: Trajectory, limits: RowLimits = LIMITS) -> EmptyPrompt:
    group = TrajectoryGroup(task_id="t", trajectories=rollouts)
    found = training_rows("u", group, CREDIT.make("uniform"), ADVANTAGE.make("grpo"), limits)
    assert not found.rows
    assert found.witness is None
    return empty_prompt_of(found, group)


def test_every_rollout_and_every_call_is_counted_once() -> None:
    found = why(
        trajectory(None, [CALL]),
        trajectory(None, [], succeeded=False),
        trajectory(1.0, [], untrained={"s1": "not selected", "s2": "not selected"}),
        trajectory(0.0, [CALL, transition([1, 2], [3, 4], span_id="other")]),
        limits=RowLimits(prompt=1, response=4),
    )
    assert found.rollouts == {"no reward": 1, "failed without a reason": 1, "no call": 1, "no call left": 1}
    assert found.calls == {"not selected": 2, "prompt over the limit": 2}


@pytest.mark.parametrize(
    ("rollouts", "limits", "said", "reason"),
    [
        ([trajectory(None, [CALL])] * 2, LIMITS, "(rollouts: 4 × no reward)", "no reward"),
        (
            [trajectory(None, [], succeeded=False)] * 2,
            LIMITS,
            "(rollouts: 4 × failed without a reason)",
            "failed without a reason",
        ),
        ([trajectory(1.0, [])] * 2, LIMITS, "(rollouts: 4 × no call)", "no call"),
        (
            [trajectory(1.0, [CALL]), trajectory(1.0, [transition([1, 2], [3, 4], span_id="other")])],
            RowLimits(prompt=8, response=1),
            "(rollouts: 4 × no call left; calls: 4 × response over the limit)",
            "response over the limit",
        ),
        ([], LIMITS, "(no rollout has finished)", None),
    ],
)
def test_counts_of_the_whole_batch_and_what_to_change_are_said(
    rollouts: list[Trajectory], limits: RowLimits, said: str, reason: str | None
) -> None:
    task = why(*rollouts, limits=limits)
    advice = "" if reason is None else f": {reason_of(reason).change}"
    assert empty_batch_message(7, [task, task]) == (
        f"step 7 has nothing to learn from: no call of its 2 tasks can be trained on {said}{advice}"
    )


def test_the_reason_that_is_met_most_says_what_to_change() -> None:
    tasks = [EmptyPrompt(rollouts={"no call left": 4, "no reward": 1}, calls={"prompt over the limit": 9})]
    assert empty_batch_message(1, tasks).endswith(": raise data.max_prompt_length")
