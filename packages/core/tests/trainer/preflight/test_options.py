"""Every option of every algorithm, given, is seen to be read by the end of the first step; a new one must be listed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.registry import ALGORITHMS, algorithm_class, make_algorithm
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext
from leyden.core.trainer.preflight.options import OptionReads

UPDATE: dict[str, dict[str, Any]] = {
    "learning_rate": {"learning_rate": 1e-3},
    "schedule": {"schedule": "linear"},
    "warmup_steps": {"warmup_steps": 2},
    "decay_to": {"schedule": "cosine", "decay_to": 0.1},
    "betas": {"betas": [0.8, 0.9]},
    "weight_decay": {"weight_decay": 0.1},
    "max_grad_norm": {"max_grad_norm": 0.5},
    "epochs": {"epochs": 2},
    "minibatches": {"minibatches": 2},
    "token_budget": {"token_budget": 100},
    "normalisation": {"normalisation": "rollout"},
    "tokens_per_rollout": {"normalisation": "constant", "tokens_per_rollout": 5},
    "correction": {"correction": "truncated"},
    "kl_loss": {"kl_loss": 0.1},
    "kl_estimator": {"kl_loss": 0.1, "kl_estimator": "k3"},
    "kl_reward": {"kl_reward": 0.1},
    "entropy_bonus": {"entropy_bonus": 0.1},
    "lora": {"lora": {"rank": 2}},
    "precision": {"precision": "bfloat16"},
    "max_empty_batches": {"max_empty_batches": 3},
}
NO_GRADIENT_OF_ADVANTAGES = ("correction", "kl_reward")
"""Refused by losses that ignore rewards."""
SPANS = ("spans", "per_step", "passes", "held_out", "held_out_every")
"""Of runs that learn from spans, which have no rollouts to check."""
STAGES: dict[str, Any] = {
    "stages": [
        {"algorithm": "sft", "steps": 1, "config": {"keep": "best"}},
        {"algorithm": "sft", "config": {"above": 0.0}},
    ]
}
SIDES: dict[str, Any] = {
    "sides": [
        {"name": "best", "algorithm": "sft", "config": {"keep": "best"}},
        {"name": "above", "algorithm": "sft", "config": {"above": 0.0}},
    ]
}
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "lightning_rl": {
        **UPDATE,
        "loss": {"loss": "reinforce"},
        "trajectory": {"trajectory": "concatenated"},
        "credit": {"credit": {"name": "discounted", "gamma": 0.9}},
        "advantage": {"advantage": "rloo"},
        "critic": {"critic": {"name": "own", "learning_rate": 1e-3}, "advantage": "gae"},
        "loop": {"loop": "one_off"},
        "max_staleness": {"loop": "async", "max_staleness": 3},
    },
    "sft": {
        **{name: {"keep": "best", **given} for name, given in UPDATE.items() if name not in NO_GRADIENT_OF_ADVANTAGES},
        "loss": {"keep": "best", "loss": "sft"},
        "keep": {"keep": "best"},
        "above": {"above": 0.25},
    },
    "dpo": {
        **{
            name: given
            for name, given in UPDATE.items()
            if name not in (*NO_GRADIENT_OF_ADVANTAGES, "normalisation", "tokens_per_rollout")
        },
        "loss": {"loss": {"name": "dpo", "beta": 0.3}},
        "credit": {"credit": "final"},
        "min_gap": {"min_gap": 0.5},
        "pairs_per_state": {"pairs_per_state": 1},
    },
    "stages": {"stages": STAGES, "learning_rate": STAGES | {"learning_rate": 1e-3}},
    "side_by_side": {
        "sides": SIDES,
        "acts": SIDES | {"acts": "above"},
        "learning_rate": SIDES | {"learning_rate": 1e-3},
    },
    "alternate": {
        "weights": {"weights": {"algorithm": "dpo"}},
        "prompts": {"prompts": {"config": {"minibatch": 2}}},
        "updates": {"updates": 3},
        "iterations": {"iterations": 2},
        "begin": {"begin": "weights"},
        "prompts_at_once": {"prompts_at_once": 2},
        "kept_prompts": {"kept_prompts": 1},
        "learning_rate": {"learning_rate": 1e-3},
    },
}
"""By algorithm and option: a configuration that it does something in."""
REFUSED = {
    "lightning_rl": set[str](),
    "sft": {*NO_GRADIENT_OF_ADVANTAGES, *SPANS},
    "dpo": {*NO_GRADIENT_OF_ADVANTAGES, *SPANS, "normalisation", "tokens_per_rollout"},
    "stages": set[str](),
    "side_by_side": set[str](),
    "alternate": set[str](),
}
CASES = [(algorithm, option) for algorithm, given in GIVEN.items() for option in given]


class Checked(ScriptedContext):
    """Has one batch, as a check that sees enough in the first one, and lets it be collected at any pace."""

    def __init__(self, algorithm: Algorithm) -> None:
        names = algorithm.sides or (POLICY,)
        models = {name: tiny_policy(shape=TinyShape(vocab=40, layers=1)) for name in names}
        super().__init__(models, [batch(names[0])], steps=3)

    @asynccontextmanager
    async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
        yield

    def log(self, metrics: Any) -> None:
        super().log(metrics)
        self.steps = self.step


def batch(policy: str) -> list[TrajectoryGroup]:
    def tried(number: int, reward: float) -> Any:
        call = transition([1, 2, 3], [4 + number, 5], rollout_id=f"r{number}", policy=policy)
        return trajectory(reward, [call], rollout_id=f"r{number}")

    return [TrajectoryGroup(task_id="t", trajectories=tuple(tried(n, float(n)) for n in range(4)))]


def test_every_option_of_every_algorithm_is_listed_here() -> None:
    # What VERL is given goes to processes of its own, and is refused there where it would be ignored.
    # The options of algorithms that train prompts are in tests/algorithm/prompts/test_options.py.
    kinds = {name: algorithm_class(name) for name in ALGORITHMS if name != "verl"}
    trained_here = {name: kind for name, kind in kinds.items() if kind.needs_policy}
    assert GIVEN.keys() == trained_here.keys()
    for name, kind in trained_here.items():
        assert set(kind.Config.__struct_fields__) == {*GIVEN[name], *REFUSED[name]}, name


@pytest.mark.parametrize(("algorithm", "option"), CASES)
async def test_an_option_that_is_given_is_read_by_the_end_of_the_first_step(algorithm: str, option: str) -> None:
    option_reads = OptionReads(algorithm, GIVEN[algorithm][option])
    checked = option_reads.algorithm
    await (checked.rehearsed() if checked.trains_prompts else checked).run(Checked(checked))
    assert option_reads.unread == ()


@pytest.mark.parametrize(("name", "config"), [("lightning_rl", {}), ("sft", {"keep": "best"}), ("dpo", {})])
async def test_what_python_gives_whole_with_its_defaults_is_not_taken_for_ignored(
    name: str, config: dict[str, Any]
) -> None:
    option_reads = OptionReads(name, make_algorithm(name, config).settings())
    await option_reads.algorithm.run(Checked(option_reads.algorithm))
    assert option_reads.unread == ()
