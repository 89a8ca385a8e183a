"""Advantages of rows: the same numbers as over whole rollouts, whatever the order and the padding of the rows."""

import random
from typing import Any

import numpy as np
import pytest

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import WeightedBatch, weigh
from leyden.core.algorithm.verl.advantages import Estimation, RowCredit, is_row, row_advantages
from leyden.core.algorithm.verl.rows import PromptRows, RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import TrainingError
from leyden.core.policy.update.entries import Normalisation, step_weights
from leyden.core.testing.factories import trajectory, transition

LIMITS = RowLimits(prompt=9, response=9)
ROLES = {"name": "role_decay", "gamma": {"planner": 0.5, "worker": 0.8}}


def groups(seed: int = 0) -> list[TrajectoryGroup]:
    """Four tasks, four rollouts each of 1 to 5 calls; the last task's rollouts all earned the same."""
    random_ = random.Random(seed)
    found: list[TrajectoryGroup] = []
    for task in range(4):
        made = [
            trajectory(
                1.0 if task == 3 else random_.choice((0.0, 0.25, 1.0)),
                [
                    transition(
                        [1],
                        [2] * random_.randint(1, 6),
                        rollout_id=f"{task}-{n}",
                        agent=random_.choice(("planner", "worker")),
                        value=random_.gauss(0.4, 0.2),
                    )
                    for _ in range(random_.randint(1, 5))
                ],
            )
            for n in range(4)
        ]
        found.append(TrajectoryGroup(task_id=str(task), trajectories=tuple(made)))
    return found


def credits_of(made: list[TrajectoryGroup], credit: Any, advantage: Any) -> list[RowCredit]:
    """Rows of all groups as the estimator is shown them; values are those of the calls."""
    found: list[RowCredit] = []
    for uid, group in enumerate(made):
        rows: PromptRows = training_rows(str(uid), group, CREDIT.make(credit), ADVANTAGE.make(advantage), LIMITS)
        for row in rows.rows:
            call = group.trajectories[row.session].transitions[row.place]
            tokens = len(row.response_ids)
            found.append(RowCredit(key=row.key, credit=row.credit, weight=row.weight, tokens=tokens, value=call.value))
    return found


def own(batch: WeightedBatch, normalisation: Normalisation, constant: int | None) -> list[float]:
    """What each token of each transition pushes with in Leyden's own backend: weight × advantage."""
    weights = step_weights(batch.transitions, normalisation, constant)
    return [weight * item.advantage for weight, item in zip(weights, batch.transitions, strict=True)]


@pytest.mark.parametrize("normalisation", ["token", "rollout", "constant"])
@pytest.mark.parametrize("credit", ["uniform", ROLES, {"name": "discounted", "gamma": 0.9}])
@pytest.mark.parametrize("advantage", ADVANTAGE.names())
def test_rows_push_as_their_transitions_do(advantage: str, credit: Any, normalisation: Normalisation) -> None:
    constant = 7 if normalisation == "constant" else None
    made = groups()
    rows = credits_of(made, credit, advantage)
    estimation = Estimation(
        estimator=ADVANTAGE.make(advantage), normalisation=normalisation, tokens_per_rollout=constant
    )
    expected = own(weigh(made, CREDIT.make(credit), ADVANTAGE.make(advantage)), normalisation, constant)

    advantages_N = row_advantages(rows, estimation)

    pushes = advantages_N / sum(row.tokens for row in rows)  # VERL's mean over tokens
    np.testing.assert_allclose(pushes[pushes != 0], np.array(expected)[np.array(expected) != 0], rtol=1e-12)


def test_the_order_of_rows_does_not_matter() -> None:
    rows = credits_of(groups(), ROLES, "gae")
    estimation = Estimation(estimator=ADVANTAGE.make("gae"))
    expected = dict(zip([row.key for row in rows], row_advantages(rows, estimation).tolist(), strict=True))
    random.Random(1).shuffle(rows)

    assert dict(
        zip([row.key for row in rows], row_advantages(rows, estimation).tolist(), strict=True)
    ) == pytest.approx(expected)


def rows_of(*rollouts: tuple[float, int]) -> list[RowCredit]:
    """Rows of one prompt: (reward, number of calls) of each rollout."""
    return [
        RowCredit(key=f"u_{session}_{place}", credit=reward, weight=1.0, tokens=1)
        for session, (reward, calls) in enumerate(rollouts)
        for place in range(calls)
    ]


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_a_rollout_counts_once_however_often_it_called(advantage: str) -> None:
    estimation = Estimation(estimator=ADVANTAGE.make(advantage))
    short = row_advantages(rows_of((1.0, 1), (0.0, 1), (0.0, 1)), estimation)
    long = row_advantages(rows_of((1.0, 5), (0.0, 1), (0.0, 2)), estimation)
    np.testing.assert_allclose(long[:5], short[0])
    np.testing.assert_allclose(long[5:], short[1])


def test_tokens_of_a_dropped_group_do_not_dilute_the_others() -> None:
    estimation = Estimation(estimator=ADVANTAGE.make("reinforce_plus_plus_baseline"))
    rows = rows_of((1.0, 1), (0.0, 1))
    same = [RowCredit(key=f"v_{n}_0", credit=1.0, weight=1.0, tokens=4) for n in range(2)]
    advantages_N = row_advantages([*rows, *same], estimation)
    assert advantages_N[2:].tolist() == [0.0, 0.0]
    # 2 of 10 tokens teach, and VERL divides by 10: what they are worth is 5 times as much.
    assert advantages_N[:2] == pytest.approx(np.array([1.0, -1.0]) * np.sqrt(3 / 2) * 5)


def test_no_row_is_no_advantage() -> None:
    assert row_advantages([], Estimation(estimator=ADVANTAGE.make("reinforce_plus_plus"))).tolist() == []


def test_only_keys_with_session_and_place_are_rows() -> None:
    assert is_row("0b1-c_3_12")
    assert not is_row("pad0123456789abcdef")
    with pytest.raises(TrainingError, match="'pad' is not a row key"):
        row_advantages(
            [RowCredit(key="pad", credit=0.0, weight=1.0, tokens=1)], Estimation(estimator=ADVANTAGE.make("rloo"))
        )


def test_a_critic_that_said_nothing_is_an_error() -> None:
    with pytest.raises(TrainingError, match="needs the values of a critic"):
        row_advantages(rows_of((1.0, 2)), Estimation(estimator=ADVANTAGE.make("gae")))
