"""What a critic is asked and taught, what is refused, and the loop with one, on a scripted context."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.algorithm.critic_targets import unvalued, value_targets, valued
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.credit.nesting import expected_returns, needs_values
from leyden.core.credit.registry import CREDIT
from leyden.core.data.reasons import NO_VALUE
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.testing import stopping_game as game

LONGEST = next(t for t, _ in game.rollouts() if len(t.transitions) == 3)


def group(*rewards: float | None) -> TrajectoryGroup:
    return TrajectoryGroup(task_id="t", trajectories=tuple(replace(LONGEST, reward=reward) for reward in rewards))


def always_the_same(calls: Any) -> Any:
    return np.full(len(calls), 0.3)


def counting(calls: Any) -> Any:
    return np.arange(len(calls), dtype=np.float64)


def values(trajectory: Trajectory) -> list[float | None]:
    return [call.value for call in trajectory.transitions]


def test_a_critic_is_asked_once_about_every_call_of_rewarded_rollouts() -> None:
    asked: list[list[Transition]] = []

    def critic(calls: Any) -> Any:
        asked.append(list(calls))
        return counting(calls)

    first, second = valued([group(1.0, None), group(0.0)], critic)

    assert [len(calls) for calls in asked] == [6]
    assert values(first.trajectories[0]) == [0.0, 1.0, 2.0]
    assert values(first.trajectories[1]) == [None] * 3
    assert values(second.trajectories[0]) == [3.0, 4.0, 5.0]
    assert values(LONGEST) == [None] * 3
    assert valued([group(None)], critic)[0].trajectories[0].transitions == LONGEST.transitions
    assert len(asked) == 1


def test_calls_that_cannot_be_read_are_left_out_and_counted() -> None:
    groups = valued([group(1.0, 0.0)], counting, lambda call: call.agent == "planner")
    assert [values(t) for t in groups[0].trajectories] == [[0.0, 1.0], [2.0, 3.0]]
    assert [t.excluded for t in groups[0].trajectories] == [{NO_VALUE: 1}] * 2
    assert unvalued(groups) == 2
    assert unvalued(valued([group(1.0)], counting)) == 0


def test_what_a_critic_should_have_said_is_what_came_of_it() -> None:
    groups = valued([group(1.0, None), group(0.5)], counting)
    plain = value_targets(groups, CREDIT.make({"name": "discounted", "gamma": 0.5}))
    assert [item.target for item in plain] == [0.25, 0.5, 1.0, 0.125, 0.25, 0.5]
    assert [item.before for item in plain] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    # Of what is not credited nothing is learned.
    assert [item.target for item in value_targets(groups, CREDIT.make("final"))] == [1.0, 0.5]


def test_groups_without_spread_teach_the_critic_all_the_same() -> None:
    groups = valued([group(0.0, 0.0), group(1.0, 0.0)], lambda calls: np.zeros(len(calls)))
    credit = CREDIT.make("learned_value")
    batch = weigh(groups, credit, ADVANTAGE.make("rloo"))
    assert batch.dropped == {"no spread": 1}
    assert [item.target for item in value_targets(groups, credit)] == [0.0] * 6 + [1.0] * 3 + [0.0] * 3


@pytest.mark.parametrize(
    "credit",
    [
        "learned_value",
        {"name": "selective", "agents": "planner", "base": "learned_value", "otherwise": "uniform"},
        {"name": "combined", "parts": [{"credit": "uniform"}, {"credit": "learned_value", "weight": 0.0001}]},
    ],
)
def test_a_critic_never_learns_from_what_it_said(credit: Any) -> None:
    made = CREDIT.make(credit)
    assert needs_values(made)
    found = [
        [t.target for t in value_targets(valued([group(1.0)], said), made)] for said in (counting, always_the_same)
    ]
    assert found[0] == found[1] == [found[0][0]] * 3
    assert expected_returns(made) == expected_returns(expected_returns(made))


def test_a_scheme_that_reads_no_values_is_what_its_critic_expects() -> None:
    for settings in ("uniform", {"name": "selective", "agents": "planner", "base": "final"}):
        made = CREDIT.make(settings)
        assert expected_returns(made) is made
        assert not needs_values(made)


def test_an_estimator_that_needs_values_and_has_none_says_so() -> None:
    with pytest.raises(TrainingError, match="GAE needs the values of a critic"):
        weigh([group(1.0)], CREDIT.make("uniform"), ADVANTAGE.make("gae"))
    with pytest.raises(TrainingError, match="calls without a value"):
        weigh([group(1.0)], CREDIT.make("learned_value"), ADVANTAGE.make("rloo"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"advantage": "gae"}, "the advantage estimator needs a critic: set critic=own"),
        ({"credit": "learned_value"}, "the credit scheme needs a critic: set critic=own"),
        ({"credit": {"name": "combined", "parts": [{"credit": "learned_value"}]}}, "the credit scheme needs a critic"),
        ({"critic": "own"}, "neither credit nor advantage reads the critic: set advantage=gae or credit=learned_value"),
        ({"critic": "own", "advantage": "gae", "credit": "learned_value"}, "count the change of value twice"),
        ({"critic": "shared", "credit": "learned_value"}, "with credit=learned_value set critic=own"),
        ({"critic": "shared", "critic.clip": 0.2, "advantage": "gae"}, "clip has no effect with one optimizer step"),
        ({"critic": "own", "critic.coefficient": 0.2, "advantage": "gae"}, "'own' has no option 'coefficient'"),
        ({"critic": {"learning_rate": 0.1}, "advantage": "gae"}, "critic must be a name"),
        (
            {"credit": {"name": "learned_value", "base": "learned_value"}, "critic": "own"},
            "already reads the critic",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_algorithm("lightning_rl", config)
    assert "\n" not in str(caught.value)


def test_settings_hold_every_option_of_the_critic_and_make_the_same_again() -> None:
    algorithm = make_algorithm("lightning_rl", {"advantage": "gae", "critic": "own", "critic.learning_rate": 1e-3})
    settings = algorithm.settings()
    assert settings["critic"] == {
        "name": "own",
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "clip": None,
        "epochs": 1,
        "minibatches": 1,
    }
    assert make_algorithm("lightning_rl", settings).settings() == settings
