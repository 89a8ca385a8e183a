"""Two policies that learn from the same rollouts: each from its own calls, with credit from the whole attempt."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from leyden.core.algorithm.dpo import DPO, DPOConfig
from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.algorithm.sft import SFT, SFTConfig
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import TrainingError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import trajectory, transition
from leyden.core.testing.policies import TinyShape, tiny_policy
from leyden.core.testing.scripted_context import ScriptedContext

TINY = TinyShape(vocab=32, hidden=16, intermediate=32, layers=1, heads=2)
RATE = 1e-3
PLANNED, REPORTED = [1, 2, 3], [1, 2, 3, 9, 9]


def pair() -> dict[str, PolicyModel]:
    return {"planner": tiny_policy(0, TINY), "reporter": tiny_policy(1, TINY)}


def said(model: PolicyModel, policy: str, prompt: list[int], answer: list[int], rollout: int) -> Transition:
    logprobs = score(model, prompt + answer)[len(prompt) - 1 :]
    return transition(prompt, answer, logprobs, rollout_id=f"r{rollout}", policy=policy, agent=policy)


def team(models: dict[str, PolicyModel], rewards: Sequence[float], *, reports: bool = True) -> list[TrajectoryGroup]:
    """A group of rollouts: the planner speaks first, and then, if it `reports`, the reporter."""
    rollouts: list[Any] = []
    for number, reward in enumerate(rewards):
        calls = [said(models["planner"], "planner", PLANNED, [4 + number, 5], number)]
        if reports:
            calls.append(said(models["reporter"], "reporter", REPORTED, [6 + number, 7, 8], number))
        rollouts.append(trajectory(reward, calls))
    return [TrajectoryGroup(task_id="t", trajectories=tuple(rollouts))]


def weights(model: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.weights().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


async def test_each_policy_takes_the_step_that_its_own_calls_alone_would_have_it_take() -> None:
    """Role decay sees both calls: the planner's return is a quarter of the reward."""
    models, alone = pair(), pair()
    groups = team(models, [1.0, 0.0])
    config = LightningRLConfig(
        learning_rate=RATE, credit={"name": "role_decay", "gamma": {"planner": 0.25}}, advantage="rloo"
    )
    context = ScriptedContext(models, [groups])
    await LightningRL(config).run(context)
    learned = [[item.advantage for item in given[1].transitions] for _, given in context.computed]
    assert learned == [[0.25, -0.25], [1.0, -1.0]]
    for name, at, advantage in (("planner", 0, 0.25), ("reporter", 1, 1.0)):
        trained = [
            WeightedTransition(transition=t.transitions[at], advantage=sign * advantage)
            for t, sign in zip(groups[0].trajectories, (1, -1), strict=True)
        ]
        Updater(alone[name], UpdateConfig(learning_rate=RATE, steps=1)).step(trained)
        assert same(weights(models[name]), weights(alone[name])), name


async def test_the_log_has_each_policys_numbers_under_its_name_and_their_sums() -> None:
    models = pair()
    context = ScriptedContext(models, [team(models, [1.0, 0.0, 0.0])])
    await LightningRL(LightningRLConfig(learning_rate=RATE)).run(context)
    assert context.calls == ["restore", "before", "collect", "update", "update", "publish", "checkpoint", "after"]
    (line,) = context.lines
    assert (line["transitions"], line["planner/transitions"], line["reporter/transitions"]) == (6, 3, 3)
    assert (line["tokens_trained"], line["planner/tokens_trained"], line["reporter/tokens_trained"]) == (15, 6, 9)
    assert (line["transitions_trained"], line["optimizer_steps"], line["policies_trained"]) == (6, 2, 2)
    assert line["planner/response_tokens_mean"] == 2.0
    assert line["planner/grad_norm"] > 0 < line["reporter/grad_norm"]
    assert "loss" not in line


async def test_a_policy_without_a_call_stays_as_it_is_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    models = pair()
    before = {name: weights(model) for name, model in models.items()}
    context = ScriptedContext(models, [team(models, [1.0, 0.0], reports=False)])
    with caplog.at_level(logging.WARNING):
        await LightningRL(LightningRLConfig(learning_rate=RATE)).run(context)
    assert same(weights(models["reporter"]), before["reporter"])
    assert not same(weights(models["planner"]), before["planner"])
    assert "step 1 did not train reporter" in caplog.text
    (line,) = context.lines
    assert (line["reporter/transitions_trained"], line["policies_trained"]) == (0, 1)
    assert "reporter/loss" not in line


async def test_the_policy_that_cannot_be_updated_is_named() -> None:
    models = pair()
    models["reporter"].config.max_position_embeddings = 6
    context = ScriptedContext(models, [team(models, [1.0, 0.0])])
    with pytest.raises(TrainingError, match="policy reporter: no transition to train on: 2 given"):
        await LightningRL(LightningRLConfig(learning_rate=RATE)).run(context)
    assert "publish" not in context.calls, "what the planner learned is not served alone"


@pytest.mark.parametrize(
    "how",
    [
        {"advantage": {"name": "gae", "lam": 1.0}, "critic": {"name": "own", "learning_rate": 1e-2}},
        {"credit": "learned_value", "advantage": "rloo", "critic": {"name": "own", "learning_rate": 1e-2}},
    ],
)
async def test_each_policy_has_a_critic_of_its_own(how: dict[str, Any]) -> None:
    models = pair()
    context = ScriptedContext(models, (team(models, [1.0, 0.0, 1.0, 1.0]) for _ in range(3)), steps=3)
    await LightningRL(LightningRLConfig(learning_rate=1e-5, **how)).run(context)
    assert [context.lines[0][f"{name}/value_states"] for name in models] == [4, 4]
    assert [context.lines[0][f"{name}/value_mean"] for name in models] == [0.0, 0.0]
    means = [context.lines[2][f"{name}/value_mean"] for name in models]
    assert min(means) > 0.0
    assert means[0] != means[1]


async def test_adapters_are_trained_in_each() -> None:
    models = pair()
    context = ScriptedContext(models, [team(models, [1.0, 0.0])])
    await LightningRL(LightningRLConfig(learning_rate=RATE, lora=LoraOptions(rank=2))).run(context)
    assert all(model.adapters is not None for model in models.values())
    assert all(any(tensor.any() for tensor in model.trained_weights().values()) for model in models.values())


async def test_whole_rollouts_are_imitated_by_each_policy_in_its_own_calls() -> None:
    models = pair()
    before = [sum(score(models["reporter"], [*REPORTED, 6 + n, 7, 8])[4:]) for n in (0, 1)]
    context = ScriptedContext(models, [team(models, [1.0, 0.0])])
    await SFT(SFTConfig(learning_rate=RATE, keep="best")).run(context)
    (line,) = context.lines
    assert (line["rollouts_imitated"], line["planner/transitions_trained"], line["reporter/tokens_trained"]) == (
        1,
        1,
        3,
    )
    after = [sum(score(models["reporter"], [*REPORTED, 6 + n, 7, 8])[4:]) for n in (0, 1)]
    assert after[0] > before[0]


async def test_no_pair_is_made_of_what_two_policies_answered_to_the_same_state() -> None:
    models = pair()
    rollouts = [
        trajectory(reward, [said(models[name], name, PLANNED, [4 + at, 5], at)])
        for at, (name, reward) in enumerate([("planner", 1.0), ("reporter", 0.0), ("reporter", 0.5)])
    ]
    context = ScriptedContext(models, [[TrajectoryGroup(task_id="t", trajectories=tuple(rollouts))]])
    await DPO(DPOConfig(learning_rate=RATE)).run(context)
    (line,) = context.lines
    assert (line["pairs"], line["policies_trained"], line["reporter/transitions_trained"]) == (1, 1, 2)
