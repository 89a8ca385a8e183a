"""Each credit scheme on worked cases."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leyden.core.credit.base import Credit, returns_to_go
from leyden.core.credit.registry import CREDIT
from leyden.core.data.transition import Outcome, Trajectory, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.testing.factories import trajectory, transition

RULES = [
    {"kind": "tool", "name": "sql", "succeeded": 0.5, "failed": -0.25},
    {"kind": "tool", "succeeded": 0.1},
    {"kind": "answer", "failed": -1.0, "matches": ""},
]


def call(agent: str | None = None, node: str | None = None, outcomes: Sequence[Outcome] = ()) -> Transition:
    return transition(agent=agent, node=node, outcomes=tuple(outcomes))


def outcome(kind: Any, name: str, succeeded: bool) -> Outcome:
    return Outcome(kind=kind, name=name, succeeded=succeeded)


def assigned(settings: Any, given: Trajectory) -> tuple[list[float], list[float]]:
    credit = CREDIT.make(settings).assign(given)
    assert credit is not None
    return credit.returns_N.tolist(), credit.weights_N.tolist()


TEAM = [call("planner"), call("team", "coder"), call("planner"), call("team", "coder")]
TOOLS = [
    call(outcomes=[outcome("tool", "run_sql", True), outcome("tool", "clock", True)]),
    call(outcomes=[outcome("tool", "run_sql", False), outcome("tool", "clock", False)]),
    call(outcomes=[outcome("answer", "json", False), outcome("operation", "sql", True)]),
]


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_uniform_gives_every_transition_the_reward(calls: int) -> None:
    assert assigned("uniform", trajectory(0.25, [call()] * calls)) == ([0.25] * calls, [1.0] * calls)


def test_final_trains_the_last_transition_alone() -> None:
    assert assigned("final", trajectory(2.0, [call()] * 3))[1] == [0.0, 0.0, 1.0]
    assert assigned("final", trajectory(2.0, [call()] * 3))[0][2] == 2.0


def test_discounted_decays_towards_the_beginning() -> None:
    assert assigned({"name": "discounted", "gamma": 0.5}, trajectory(-2.0, [call()] * 3))[0] == [-0.5, -1.0, -2.0]


def test_role_decay_has_a_rate_for_each_role_and_knows_the_node_before_the_agent() -> None:
    settings = {"name": "role_decay", "gamma": {"planner": 0.5, "coder": 0.1, "team": 0.7}}
    assert assigned(settings, trajectory(8.0, TEAM))[0] == pytest.approx([1.0, 0.08, 4.0, 8.0])
    others = {"name": "role_decay", "gamma": {"planner": 1.0}, "otherwise": 0.5}
    assert assigned(others, trajectory(8.0, TEAM))[0] == [8.0, 2.0, 8.0, 8.0]


def test_intermediate_pays_what_came_of_a_call_to_it_and_to_those_before() -> None:
    # Rewards of the calls: 0.5 + 0.1 (the first rule that fits counts), -0.25 + 0, -1.
    settings = {"name": "intermediate", "rules": RULES}
    assert assigned(settings, trajectory(1.0, TOOLS))[0] == pytest.approx([0.35, -0.25, 0.0])
    assert assigned({**settings, "gamma": 0.5}, trajectory(1.0, TOOLS))[0] == pytest.approx([1.225, 0.25, 0.0])
    assert assigned({**settings, "gamma": 0.0}, trajectory(1.0, TOOLS))[0] == pytest.approx([1.6, 0.75, 0.0])
    over = {**settings, "base": {"name": "discounted", "gamma": 0.5}}
    assert assigned(over, trajectory(1.0, TOOLS))[0] == pytest.approx([-0.4, -0.75, 0.0])


def test_potential_subtracts_the_progress_a_call_started_from() -> None:
    settings = {"name": "potential", "rules": RULES}
    assert assigned(settings, trajectory(1.0, TOOLS))[0] == pytest.approx([1.0, 0.4, 0.65])


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9, 1.0])
def test_potential_is_the_sum_of_its_steps(gamma: float) -> None:
    # F_n = gamma Φ(s_(n+1)) - Φ(s_n), Φ = 0 after the end (Ng et al. 1999, theorem 1).
    potential = [0.0, 0.6, 0.35, 0.0]
    steps = [gamma * after - before for before, after in itertools.pairwise(potential)]
    expected = [1.0 + sum(gamma**k * step for k, step in enumerate(steps[n:])) for n in range(3)]
    assert assigned({"name": "potential", "rules": RULES}, trajectory(1.0, TOOLS))[0] == pytest.approx(expected)


def test_returns_to_go_are_discounted_sums() -> None:
    rewards = Credit.of([1.0, -2.0, 4.0]).returns_N
    assert returns_to_go(rewards, 0.5).tolist() == [1.0, 0.0, 4.0]
    assert returns_to_go(rewards, 0.0).tolist() == rewards.tolist()


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A user's file of functions."""
    path = tmp_path / "functions.py"
    path.write_text(
        "def later_more(trajectory):\n    return [n + 1 for n, _ in enumerate(trajectory.transitions)]\n"
        "def nothing(trajectory):\n    return [0.0] * len(trajectory.transitions)\n"
        "def too_few(trajectory):\n    return [1.0]\n"
        "def negative(trajectory):\n    return [-1.0] * len(trajectory.transitions)\n"
        "def planners_and_tools(trajectory):\n"
        "    calls = trajectory.transitions\n"
        "    return 3.0 * any(c.agent == 'planner' for c in calls) + any(c.node == 'coder' for c in calls)\n"
        "def text(trajectory):\n    return 'much'\n"
        "number = 1\n"
        "def huge(trajectory):\n    return 10**400\n"
        "def words(trajectory):\n    return ['a', 'b']\n"
        "def ragged(trajectory):\n    return [1, [2, 3]]\n"
        "def enormous(trajectory):\n    return [10**400, 1]\n"
        "def raises(trajectory):\n    return trajectory.reward['truth']\n"
        "def leaves(trajectory):\n    raise SystemExit(2)\n"
    )
    return path


def test_contribution_weighs_by_a_users_shares(functions: Path) -> None:
    settings = {"name": "contribution", "shares": f"{functions}:later_more"}
    assert assigned(settings, trajectory(2.0, [call()] * 3)) == ([2.0] * 3, [0.5, 1.0, 1.5])
    assert assigned({**settings, "shares": f"{functions}:nothing"}, trajectory(2.0, [call()] * 2))[1] == [0.0, 0.0]


@pytest.mark.parametrize("function", ["too_few", "negative", "words", "ragged", "enormous"])
def test_what_cannot_be_shares_is_refused(functions: Path, function: str) -> None:
    with pytest.raises(TrainingError, match=f"{function}.*there must be 2 shares"):
        assigned({"name": "contribution", "shares": f"{functions}:{function}"}, trajectory(1.0, [call()] * 2))


def test_leave_one_out_weighs_roles_by_what_would_be_missing(functions: Path) -> None:
    # Without the planner 1 is left of 4, without the coder 3: shares 3 and 1, each split between two calls.
    settings = {"name": "leave_one_out", "value": f"{functions}:planners_and_tools"}
    assert assigned(settings, trajectory(2.0, TEAM)) == ([2.0] * 4, [1.5, 0.5, 1.5, 0.5])
    with pytest.raises(TrainingError, match="text returned 'much', not a finite number"):
        assigned({**settings, "value": f"{functions}:text"}, trajectory(2.0, TEAM))
    with pytest.raises(TrainingError, match=r"huge returned 1000.*, not a finite number"):
        assigned({**settings, "value": f"{functions}:huge"}, trajectory(2.0, TEAM))


@pytest.mark.parametrize(("name", "option"), [("contribution", "shares"), ("leave_one_out", "value")])
@pytest.mark.parametrize(("function", "says"), [("raises", "TypeError: .*"), ("leaves", "SystemExit: 2 ")])
def test_a_function_that_raises_stops_the_run_with_its_place_and_the_rollout(
    functions: Path, name: str, option: str, function: str, says: str
) -> None:
    line = rf"{function} raised {says}\({functions}, line \d+\) for rollout {trajectory(1.0, TEAM).rollout_id}$"
    with pytest.raises(TrainingError, match=line):
        assigned({"name": name, option: f"{functions}:{function}"}, trajectory(2.0, TEAM))


def test_combined_adds_returns_and_multiplies_weights(functions: Path) -> None:
    parts = [
        {"credit": "uniform", "weight": 0.5},
        {"credit": {"name": "contribution", "shares": f"{functions}:later_more"}, "weight": 2.0},
        {"credit": {"name": "discounted", "gamma": 0.5}},
    ]
    assert assigned({"name": "combined", "parts": parts}, trajectory(1.0, [call()] * 2)) == (
        [3.0, 3.5],
        pytest.approx([2 / 3, 4 / 3]),
    )


def test_selective_trains_the_agents_it_finds() -> None:
    settings: dict[str, Any] = {"name": "selective", "agents": "^plan|review", "base": "final"}
    assert assigned(settings, trajectory(1.0, TEAM))[1] == [0.0, 0.0, 1.0, 0.0]
    settings["otherwise"] = {"name": "discounted", "gamma": 0.5}
    assert assigned(settings, trajectory(1.0, TEAM)) == ([1.0, 0.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    assert assigned({"name": "selective", "agents": "nobody"}, trajectory(1.0, TEAM))[1] == [0.0] * 4


def test_dimensions_make_the_reward_of_its_parts() -> None:
    settings = {"name": "dimensions", "weights": {"correct": 0.9, "format": 0.1}}
    given = trajectory(1.0, [call()], dimensions={"correct": 0.5, "format": 1.0, "speed": 7.0})
    assert assigned(settings, given)[0] == pytest.approx([0.55])
    with pytest.raises(TrainingError, match="rollout ro has no dimension 'format'; it has correct"):
        assigned(settings, trajectory(1.0, [call()], dimensions={"correct": 0.5}))


def test_silence_is_never_scored(functions: Path) -> None:
    silent = trajectory(None, TEAM, dimensions={"correct": 1.0})
    options: dict[str, dict[str, Any]] = {
        "combined": {"parts": [{"credit": "uniform"}]},
        "contribution": {"shares": f"{functions}:later_more"},
        "dimensions": {"weights": {"correct": 1.0}},
        "intermediate": {"rules": RULES},
        "leave_one_out": {"value": f"{functions}:planners_and_tools"},
        "potential": {"rules": RULES},
        "role_decay": {"gamma": {"planner": 0.5}},
        "selective": {"agents": "planner"},
    }
    for name in CREDIT.built_in:
        assert CREDIT.make({"name": name, **options.get(name, {})}).assign(silent) is None, name


def test_roles_that_options_name_are_known() -> None:
    inner = {"name": "role_decay", "gamma": {"planner": 0.5, "critic": 0.1}}
    part = {"credit": {"name": "selective", "agents": "x", "otherwise": inner}}
    dimensions = {"name": "dimensions", "weights": {"a": 1.0}, "base": {"name": "combined", "parts": [part]}}
    shaped = {"name": "intermediate", "rules": RULES, "base": {"name": "potential", "rules": RULES, "base": dimensions}}
    assert CREDIT.make(shaped).roles == {"planner", "critic"}
    assert CREDIT.make("uniform").roles == frozenset()


def test_credit_that_cannot_be_is_refused() -> None:
    for returns, weights in (([1.0, float("nan")], 1.0), ([1.0], -1.0), ([1.0], float("inf"))):
        with pytest.raises(TrainingError, match="must be finite"):
            Credit.of(returns, weights)
    with pytest.raises(TrainingError, match="do not match"):
        Credit(returns_N=Credit.of([1.0]).returns_N, weights_N=Credit.of([1.0, 1.0]).returns_N)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "discounted", "gamma": 0.0}, "gamma must be above 0 and at most 1, got 0.0"),
        ({"name": "discounted", "gamma": float("nan")}, "gamma must be above 0 and at most 1, got nan"),
        ({"name": "role_decay"}, "role_decay needs gamma"),
        ({"name": "role_decay", "gamma": {"a": 3}}, "gamma of role 'a' must be above 0 and at most 1, got 3.0"),
        ({"name": "role_decay", "gamma": {"a": 1}, "otherwise": -1}, "otherwise must be above 0"),
        ({"name": "intermediate"}, "intermediate needs at least one rule"),
        ({"name": "potential"}, "potential needs at least one rule"),
        ({"name": "intermediate", "rules": RULES, "gamma": 2}, "gamma must be between 0 and 1, got 2.0"),
        ({"name": "intermediate", "rules": [{"kind": "tool"}]}, "give succeeded, failed or both"),
        ({"name": "intermediate", "rules": [{"kind": "toool", "failed": 1}]}, "'toool'.*rules"),
        ({"name": "intermediate", "rules": [{"kin": "tool", "failed": 1}]}, "unknown field `kin`"),
        ({"name": "intermediate", "rules": [{"name": "(", "failed": 1}]}, "not a regular expression"),
        ({"name": "intermediate", "rules": [{"failed": float("inf")}]}, "failed must be a finite number"),
        ({"name": "combined"}, "combined needs parts"),
        ({"name": "combined", "parts": [{"credit": "uniform", "weight": 0}]}, "weight 0 has no effect"),
        ({"name": "selective", "agents": "("}, "not a regular expression"),
        ({"name": "dimensions"}, "dimensions needs weights"),
        ({"name": "dimensions", "weights": {"a": float("nan")}}, "weight of dimension 'a'"),
        ({"name": "contribution", "shares": "math:pi"}, "'math:pi' is not a function"),
        ({"name": "leave_one_out", "value": "no_such_module:f"}, "no module 'no_such_module'"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        CREDIT.make(settings)
    assert "\n" not in str(caught.value)
