"""Which credit and advantages are unbiased, exactly, on a game whose policy decides when to stop; and by how much not.

The sizes stand in `docs/credit.md` and in docstrings, which are held to them here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leyden.core.advantage.base import AdvantageEstimator, Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_mean_of_others
from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.critic_targets import Critic
from leyden.core.credit.registry import CREDIT
from leyden.core.testing import stopping_game as game
from leyden.core.testing.stopping_game import Bias

PAGE = Path(__file__).parents[4] / "docs" / "credit.md"
WORKED, FAILED = 0.3, -0.1
RULES = [{"kind": "tool", "succeeded": WORKED, "failed": FAILED}]
INTERMEDIATE = {"name": "intermediate", "rules": RULES}
POTENTIAL = {"name": "potential", "rules": RULES}
DISCOUNTED = {"name": "discounted", "gamma": 0.9}
ROLE_DECAY = {"name": "role_decay", "gamma": {"planner": 0.5}}
COMBINED = {
    "name": "combined",
    "parts": [{"credit": "uniform", "weight": 3.0}, {"credit": POTENTIAL, "weight": -2.0}],
}
LAST_TWICE = {"name": "contribution", "shares": "last_twice"}
WORKERS = {"name": "leave_one_out", "value": "workers_count"}
BY_TRANSITION = {"name": "reinforce_plus_plus", "counting": "transition"}
ANSWER, BOTH = "R", "R + r"
"""Objectives: what the answer earns; that and the intermediate rewards."""
RIGHT, WRONG = "right critic", "wrong critic"
SAID = [0.1, 0.9, 0.3, 0.2, 0.5]
"""What the wrong one expects of the states."""
BIASES: dict[str, Bias] = {}
"""What was computed, by its case."""


@cache
def truth(objective: str) -> Floats:
    return game.true_gradient(WORKED, FAILED) if objective == BOTH else game.true_gradient()


def critic(kind: str | None, objective: str) -> Critic | None:
    if kind is None:
        return None
    right = game.expected_rewards(worked=WORKED, failed=FAILED) if objective == BOTH else game.expected_rewards()
    return game.critic_of(right if kind == RIGHT else SAID)


def bias(
    credit: Any, advantage: Any, objective: str = ANSWER, says: str | None = None, size: int = 3, groups: int = 1
) -> Bias:
    """Enumerating takes a while, and pages and docstrings name the same sizes: each case is computed once."""
    case = repr((credit, advantage, objective, says, size, groups))
    if case not in BIASES:
        made = advantage if isinstance(advantage, AdvantageEstimator) else ADVANTAGE.make(advantage)
        estimate = game.expected_gradient(CREDIT.make(credit), made, size, groups, critic(says, objective))
        BIASES[case] = game.bias(estimate, truth(objective))
    return BIASES[case]


def gae(lam: float, *, whiten: bool = False) -> dict[str, Any]:
    return {"name": "gae", "lam": lam, "whiten": whiten}


def test_the_game_is_whole() -> None:
    probabilities = [probability for _, probability in game.rollouts()]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-14)
    by_rollouts = sum((t.reward or 0.0) * probability for t, probability in game.rollouts())
    assert by_rollouts == pytest.approx(game.expected_reward(), abs=1e-14)
    assert {len(t.transitions) for t, _ in game.rollouts()} == {1, 2, 3}


def test_complex_steps_are_the_score_function_and_finite_differences() -> None:
    by_scores = np.zeros_like(game.LOGITS)
    for trajectory, probability in game.rollouts():
        by_scores += probability * (trajectory.reward or 0.0) * sum(map(game.score, trajectory.transitions))
    np.testing.assert_allclose(by_scores, truth(ANSWER), atol=1e-14)
    moved = game.LOGITS.copy()
    moved[0, game.TOOL] += 1e-6
    slope = (game.expected_reward(moved) - game.expected_reward()) / 1e-6
    assert slope == pytest.approx(truth(ANSWER)[0, game.TOOL], rel=1e-5)


UNBIASED = [
    ("uniform", "rloo", ANSWER, None),
    ("uniform", "turn_level", ANSWER, None),
    (INTERMEDIATE, "rloo", BOTH, None),
    (INTERMEDIATE, "turn_level", BOTH, None),
    (POTENTIAL, "rloo", ANSWER, None),
    (POTENTIAL, "turn_level", ANSWER, None),
    ({**POTENTIAL, "base": INTERMEDIATE}, "turn_level", BOTH, None),
    ({"name": "dimensions", "weights": {"answer": 1.0, "turns": 0.0}}, "rloo", ANSWER, None),
    (COMBINED, "rloo", ANSWER, None),
    ("uniform", gae(1.0), ANSWER, RIGHT),
    ("uniform", gae(1.0), ANSWER, WRONG),
    ("uniform", gae(0.5), ANSWER, RIGHT),
    (INTERMEDIATE, gae(0.0), BOTH, RIGHT),
    (INTERMEDIATE, gae(1.0), BOTH, WRONG),
    ("learned_value", "rloo", ANSWER, RIGHT),
    ("learned_value", "turn_level", ANSWER, RIGHT),
    ({"name": "learned_value", "base": INTERMEDIATE}, "rloo", BOTH, RIGHT),
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("credit", "advantage", "objective", "says"), UNBIASED)
def test_what_is_said_to_be_unbiased_is(
    credit: Any, advantage: Any, objective: str, says: str | None, size: int
) -> None:
    assert bias(credit, advantage, objective, says, size).relative < 1e-8


@pytest.mark.parametrize("credit", ["uniform", INTERMEDIATE])
@pytest.mark.parametrize("size", [2, 3])
def test_dr_grpo_is_unbiased_but_for_its_known_factor(credit: Any, size: int) -> None:
    found = bias(credit, "dr_grpo", ANSWER if credit == "uniform" else BOTH, size=size)
    assert found.scale == pytest.approx(1 - 1 / size, abs=1e-8)
    assert found.degrees < 1e-8


def test_leaving_agents_out_is_the_gradient_of_the_others() -> None:
    planner = CREDIT.make({"name": "selective", "agents": "^planner$"})
    estimate = game.expected_gradient(planner, ADVANTAGE.make("rloo"), 3)
    own = np.array([agent == "planner" for agent in game.AGENTS])
    np.testing.assert_allclose(estimate[own], truth(ANSWER)[own], atol=1e-12)
    assert not estimate[~own].any()


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRollout(GroupEstimator):
    """RLOO under a loss that gives every rollout the same weight, however many calls it made."""

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        return [centred_N / len(centred_N) for centred_N in minus_mean_of_others(returns)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CentredTurnByTurn(GroupEstimator):
    """Not to be done: subtract at each turn the others' mean reward there, then add up what is left (verl #7244)."""

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        rewards = [returns_N - np.append(returns_N[1:], 0.0) for returns_N in returns]
        found: list[Floats] = []
        for own, rewards_N in enumerate(rewards):
            others = [other for number, other in enumerate(rewards) if number != own]
            left = [
                reward - np.mean([other[n] for other in others if len(other) > n] or [0.0])
                for n, reward in enumerate(rewards_N)
            ]
            found.append(np.array(left, dtype=np.float64)[::-1].cumsum()[::-1])
        return found


def test_centring_turn_by_turn_before_adding_up_pays_for_stopping() -> None:
    # The intermediate rewards are positive on average, so each further turn subtracts something more.
    estimate = game.expected_gradient(CREDIT.make(INTERMEDIATE), CentredTurnByTurn(), 3)
    assert game.bias(estimate, truth(BOTH)).degrees > 1.0
    assert estimate[game.START, game.TOOL] < truth(BOTH)[game.START, game.TOOL]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's functions for contribution weights."""
    path = tmp_path_factory.mktemp("user") / "shares.py"
    path.write_text(
        "def last_twice(trajectory):\n    return [1.0] * (len(trajectory.transitions) - 1) + [2.0]\n"
        "def workers_count(trajectory):\n"
        "    return 2.0 * len({c.agent for c in trajectory.transitions}) + sum(\n"
        "        c.agent == 'worker' for c in trajectory.transitions)\n"
    )
    return path


BIASED = [
    ("uniform", "grpo", "uniform", "grpo", ANSWER, None),
    ("uniform", "grpo_transitions", "uniform", "grpo_transitions", ANSWER, None),
    ("uniform", "reinforce_plus_plus", "uniform", "reinforce_plus_plus", ANSWER, None),
    ("uniform", "reinforce_plus_plus, counting transitions", "uniform", BY_TRANSITION, ANSWER, None),
    ("uniform", "gae, whitened, right critic", "uniform", gae(0.95, whiten=True), ANSWER, RIGHT),
    ("uniform", "gae, lam 0.95, wrong critic", "uniform", gae(0.95), ANSWER, WRONG),
    ("uniform", "gae, lam 0.5, wrong critic", "uniform", gae(0.5), ANSWER, WRONG),
    ("uniform", "gae, lam 0, wrong critic", "uniform", gae(0.0), ANSWER, WRONG),
    ("learned_value", "rloo, wrong critic", "learned_value", "rloo", ANSWER, WRONG),
    ("learned_value", "grpo, right critic", "learned_value", "grpo", ANSWER, RIGHT),
    ("uniform", "rloo, loss per rollout", "uniform", PerRollout(), ANSWER, None),
    ("final", "rloo", "final", "rloo", ANSWER, None),
    ("discounted, gamma 0.9", "rloo", DISCOUNTED, "rloo", ANSWER, None),
    ("discounted, gamma 0.9", "grpo", DISCOUNTED, "grpo", ANSWER, None),
    ("role_decay, planner 0.5", "rloo", ROLE_DECAY, "rloo", ANSWER, None),
    ("contribution, the last call twice", "rloo", LAST_TWICE, "rloo", ANSWER, None),
    ("leave_one_out, workers count more", "rloo", WORKERS, "rloo", ANSWER, None),
    ("intermediate", "rloo", INTERMEDIATE, "rloo", ANSWER, None),
    ("intermediate", "grpo", INTERMEDIATE, "grpo", BOTH, None),
    ("intermediate, gamma 0", "rloo", {**INTERMEDIATE, "gamma": 0.0}, "rloo", BOTH, None),
    ("intermediate, centred turn by turn, then added up", "none", INTERMEDIATE, CentredTurnByTurn(), BOTH, None),
    ("potential", "grpo", POTENTIAL, "grpo", ANSWER, None),
]


def measured(case: tuple[str, str, Any, Any, str, str | None], functions: Path) -> Bias:
    _, _, credit, advantage, objective, says = case
    for option in {"shares", "value"} & set(credit):
        credit = {**credit, option: f"{functions}:{credit[option]}"}
    return bias(credit, advantage, objective, says)


@pytest.mark.parametrize("case", BIASED, ids=[f"{credit} · {advantage}" for credit, advantage, *_ in BIASED])
def test_what_is_biased_is_documented_with_its_size(
    case: tuple[str, str, Any, Any, str, str | None], functions: Path
) -> None:
    found = measured(case, functions)
    assert found.relative > 0.01
    assert found.degrees > 0.1
    row = f"| {case[0]} | {case[1]} | {case[4]} | {found.degrees:.1f} | {found.scale:.2f} |"
    assert row in PAGE.read_text(), row


def test_every_estimator_and_credit_scheme_is_said_to_be_biased_or_not() -> None:
    def name(settings: Any) -> str:
        return settings if isinstance(settings, str) else str(settings["name"])

    credits = {name(case[0]) for case in UNBIASED} | {name(case[2]) for case in BIASED}
    estimators = {name(case[1]) for case in UNBIASED} | {
        name(case[3]) for case in BIASED if not isinstance(case[3], AdvantageEstimator)
    }
    of_their_own = {"dr_grpo", "reinforce_plus_plus_baseline"}, {"selective"}
    assert estimators | of_their_own[0] == ADVANTAGE.built_in.keys()
    assert credits | of_their_own[1] == CREDIT.built_in.keys()


@pytest.mark.parametrize(
    ("name", "settings", "credit"),
    [
        ("grpo", "grpo", "uniform"),
        ("grpo_transitions", "grpo_transitions", "uniform"),
        ("reinforce_plus_plus", "reinforce_plus_plus", "uniform"),
        ("final", "rloo", "final"),
        ("discounted", "rloo", DISCOUNTED),
        ("role_decay", "rloo", ROLE_DECAY),
        ("learned_value", "rloo", "learned_value"),
    ],
)
def test_docstrings_name_the_size_of_the_bias(name: str, settings: Any, credit: Any) -> None:
    kind = ADVANTAGE.built_in.get(name) or CREDIT.built_in[name]
    says = " ".join((kind.__doc__ or "").split())
    critic = WRONG if credit == "learned_value" else None
    assert f"{bias(credit, settings, says=critic).degrees:.1f} degrees" in says


def test_a_unit_of_the_batch_is_less_biased_than_one_of_the_group() -> None:
    # Two groups of two: GRPO's unit is still its own group's, the others' is that of four rollouts.
    sizes = {
        "grpo": bias("uniform", "grpo", size=2).degrees,
        "reinforce_plus_plus": bias("uniform", "reinforce_plus_plus", size=4).degrees,  # which ignores groups
        "reinforce_plus_plus_baseline": bias("uniform", "reinforce_plus_plus_baseline", size=2, groups=2).degrees,
    }
    assert sizes["reinforce_plus_plus_baseline"] < sizes["reinforce_plus_plus"] < sizes["grpo"]
    line = "Two groups of two: " + ", ".join(f"`{name}` {degrees:.1f}" for name, degrees in sizes.items())
    assert line in PAGE.read_text()


def test_the_page_says_how_wrong_the_wrong_critic_is() -> None:
    right = [f"{abs(value):.2f}" for value in game.expected_rewards()]
    text = " ".join(PAGE.read_text().split())
    said = ", ".join(f"{value:g}" for value in SAID[:4]) + f" and {SAID[4]:g}"
    assert f"says {said} of the states where {', '.join(right[:4])} and {right[4]} are right" in text
