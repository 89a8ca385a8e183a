"""From trajectories to weighted transitions, and how credit and advantages are configured."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import absent_roles, weigh
from leyden.core.algorithm.critic_targets import valued
from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.registry import CREDIT
from leyden.core.data.scheme import nested
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import TrainingError, UsageError
from leyden.core.testing import stopping_game as game

PAGE = Path(__file__).parents[4] / "docs" / "credit.md"


def group(*rewards: float | None, calls: int = 2) -> TrajectoryGroup:
    """Rollouts of the game's longest kind, planner first, with these rewards."""
    longest = next(t for t, _ in game.rollouts() if len(t.transitions) == 3)
    own = longest.transitions[:calls]
    return TrajectoryGroup(
        task_id="t", trajectories=tuple(replace(longest, reward=reward, transitions=own) for reward in rewards)
    )


def weighed(groups: list[TrajectoryGroup], credit: Any, advantage: Any = "dr_grpo") -> list[float]:
    return [item.advantage for item in weigh(groups, CREDIT.make(credit), ADVANTAGE.make(advantage)).transitions]


def test_each_transition_gets_its_advantage_times_its_weight() -> None:
    assert weighed([group(1.0, 0.0)], "uniform") == [0.5, 0.5, -0.5, -0.5]
    halves = {"name": "combined", "parts": [{"credit": "uniform"}]}
    assert weighed([group(1.0, 0.0)], halves) == [0.5, 0.5, -0.5, -0.5]


def test_weights_multiply_and_a_weight_of_zero_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "shares.py"
    path.write_text("def shares(trajectory):\n    return [0.0, 1.0, 3.0]\n")
    batch = weigh(
        [group(1.0, 0.0, calls=3)],
        CREDIT.make({"name": "contribution", "shares": f"{path}:shares"}),
        ADVANTAGE.make("dr_grpo"),
    )
    assert [item.advantage for item in batch.transitions] == pytest.approx([0.375, 1.125, -0.375, -1.125])
    assert batch.uncredited == 2


def test_an_estimator_sees_credited_transitions_only() -> None:
    # The worker's calls are compared as if the planner's were not there: at their first turn, not their second.
    batch = weigh([group(1.0, 0.0)], CREDIT.make({"name": "selective", "agents": "worker"}), ADVANTAGE.make("rloo"))
    assert [item.advantage for item in batch.transitions] == [1.0, -1.0]
    assert {item.transition.agent for item in batch.transitions} == {"worker"}


def test_groups_are_dropped_by_the_reason_why() -> None:
    groups = [group(1.0, 1.0), group(1.0, None), group(None), group(1.0, 0.0, calls=0), group(1.0, 0.0)]
    batch = weigh(groups, CREDIT.make("uniform"), ADVANTAGE.make("grpo"))
    assert batch.dropped == {"no spread": 1, "fewer than two rewards": 3}
    assert len(batch.transitions) == 4
    nobody = weigh([group(1.0, 0.0)], CREDIT.make({"name": "selective", "agents": "nobody"}), ADVANTAGE.make("grpo"))
    assert (nobody.dropped, nobody.uncredited) == ({"no credited call": 1}, 4)


def test_values_of_credited_transitions_reach_the_estimator() -> None:
    estimator = ADVANTAGE.make({"name": "gae", "lam": 1.0, "whiten": False})
    groups = valued([group(1.0)], lambda calls: np.array([0.5, 0.25]))
    assert [item.advantage for item in weigh(groups, CREDIT.make("final"), estimator).transitions] == [0.75]


class TooShort(CreditAssigner):
    def assign(self, trajectory: Trajectory) -> Credit | None:
        return Credit.of([1.0])


def test_credit_for_another_number_of_transitions_is_refused() -> None:
    with pytest.raises(TrainingError, match="has 2 transitions, and its credit has values for 1"):
        weigh([group(1.0, 0.0)], TooShort(), ADVANTAGE.make("grpo"))


def test_roles_that_nobody_speaks_in_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    credit = {"name": "role_decay", "gamma": {"planer": 0.5, "worker": 0.5}}
    assert absent_roles(CREDIT.make(credit), [group(1.0)]) == ["planer"]
    algorithm = LightningRL(LightningRLConfig(credit=credit))
    with caplog.at_level(logging.WARNING):
        algorithm.weigh([group(1.0, 0.0)])
        algorithm.weigh([group(1.0, 0.0)])
    assert caplog.text.count("roles that no agent or node had so far: planer") == 1


def test_settings_hold_every_option_and_make_the_same_again() -> None:
    algorithm = make_algorithm("lightning_rl", {"credit": {"name": "discounted"}, "advantage": "reinforce_plus_plus"})
    settings = algorithm.settings()
    assert settings["credit"] == {"name": "discounted", "gamma": 0.95}
    assert settings["advantage"] == {"name": "reinforce_plus_plus", "counting": "rollout", "eps": 1e-8}
    again = make_algorithm("lightning_rl", settings)
    assert isinstance(again, LightningRL) and isinstance(algorithm, LightningRL)
    assert (again.credit, again.advantage) == (algorithm.credit, algorithm.advantage)
    assert again.settings() == settings


def test_the_command_line_overrides_parts_of_what_yaml_says() -> None:
    text = PAGE.read_text().split("```yaml\n")[1].split("```")[0]
    config = yaml.safe_load(text)["algorithm_config"]
    over = {**config, "credit.base.gamma": 0.5, "credit.gamma": 0.25, "advantage.eps": 0.1, "advantage": "rloo"}
    del config["advantage"]
    algorithm = make_algorithm("lightning_rl", {**config, "advantage": "grpo", "advantage.eps": 0.1})
    assert algorithm.settings()["advantage"] == {"name": "grpo", "eps": 0.1}
    with pytest.raises(UsageError, match="'rloo' has no option 'eps'"):
        make_algorithm("lightning_rl", over)
    del over["advantage.eps"]
    credit = make_algorithm("lightning_rl", over).settings()["credit"]
    assert (credit["base"], credit["gamma"]) == ({"name": "discounted", "gamma": 0.5}, 0.25)
    assert config["credit"]["base"]["gamma"] == 0.95


def test_dotted_keys_become_mappings() -> None:
    assert nested({"credit": "discounted", "credit.gamma": 0.9}) == {"credit": {"name": "discounted", "gamma": 0.9}}
    assert nested({"credit.base.name": "final"}) == {"credit": {"base": {"name": "final"}}}
    assert nested({"credit.gamma": 0.9, "credit": "final"}) == {"credit": "final"}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"advantage": "grop"}, "unknown advantage estimator 'grop'; use one of dr_grpo, gae, grpo"),
        ({"credit.gamma": 0.9}, "a mapping with a `name`"),
        ({"credit": 3}, "credit"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_algorithm("lightning_rl", config)
    assert "\n" not in str(caught.value)
