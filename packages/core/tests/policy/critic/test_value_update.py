"""Steps of a policy and its critic: against plain loops in float64, through checkpoints, and on a game."""

from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from leyden.core.data.encoding.tokens import token_ids
from leyden.core.data.transition import Transition
from leyden.core.errors import PolicyError, TrainingError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from leyden.core.policy.critic.critic import Critic
from leyden.core.policy.critic.options import CRITICS
from leyden.core.policy.critic.value_loss import ValueTarget
from leyden.core.policy.critic.value_update import ActorCritic, explained_variance
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.updater import Updater
from leyden.core.testing import stopping_game as game
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_models import tiny_model

SHAPE = RolloutShape(system=20, question=3, calls=(4, 3), observation=4)
STEADY = UpdateConfig(learning_rate=0.0, max_grad_norm=1e9)
Step = tuple[list[WeightedTransition], list[ValueTarget]]


def policy(seed: int = 0) -> PolicyModel:
    """gpt2, because its layer norms stay in float64."""
    return PolicyModel(tiny_model("gpt2", seed).double(), f"gpt2-{seed}")


def given(count: int = 5, seed: int = 0) -> Step:
    """What is trained, and what a critic should have said: of that, and of two calls more."""
    trained: list[WeightedTransition] = []
    targets: list[ValueTarget] = []
    for number, item in enumerate(synthetic_rollouts(count, 61, seed, SHAPE, single_call_share=0.3)):
        call = changed(item.transition, value=0.1 * number - 0.3)
        trained.append(changed(item, transition=call))
        targets.append(ValueTarget(call, float(np.sin(number))))
    return trained[:-2], targets


def updater(options: Any, config: UpdateConfig = STEADY, seed: int = 0) -> ActorCritic:
    """An updater whose value head no longer is 0."""
    made = ActorCritic(policy(seed), config, CRITICS.make(options))
    generator = torch.Generator().manual_seed(3)
    made.critic.head.weight.data.normal_(0.0, 0.3, generator=generator)
    made.critic.head.bias.data.fill_(0.2)
    return made


def plain_value(model: PolicyModel, critic: Critic, call: Transition) -> Tensor:
    output: Any = model.module(input_ids=torch.tensor([list(call.prompt_ids)]), output_hidden_states=True)
    return output.hidden_states[-1][0, -1] @ critic.head.weight[0] + critic.head.bias[0]


def gradient(parameters: Any) -> Tensor:
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])


def error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().sum() / expected.square().sum()).sqrt().item()


WAYS: list[dict[str, Any]] = [
    {"token_budget": 100_000},
    {"token_budget": 1, "merge": False, "share_prefix": False},
    {"token_budget": 90},
]


@pytest.mark.parametrize("way", WAYS)
def test_an_own_critic_gets_the_gradient_of_the_mean_loss_of_all_states(way: dict[str, Any]) -> None:
    trained, targets = given()
    found = updater({"name": "own", "learning_rate": 0.0}, replace(STEADY, **way))
    alone = Updater(policy(), replace(STEADY, **way))

    report = found.learn(trained, targets)
    alone.step(trained)

    model, head = policy(), updater("own").critic
    losses = [(plain_value(model, head, t.call) - t.target).square() / 2 for t in targets]
    mean = torch.stack(losses).mean()
    torch.autograd.backward(mean)
    expected = torch.cat([gradient(head.head.parameters()), gradient(model.parameters())])
    got = torch.cat([gradient(found.critic.head.parameters()), gradient(found.critic.backbone.parameters())])
    assert report.value.loss == pytest.approx(mean.item(), rel=1e-12)
    assert error(got, expected) < 1e-10
    # Nothing of the critic reaches the policy.
    assert torch.equal(gradient(found.model.parameters()), gradient(alone.model.parameters()))


@pytest.mark.parametrize("way", WAYS)
def test_a_shared_backbone_gets_both_gradients_in_one_pass(way: dict[str, Any]) -> None:
    trained, targets = given()
    settings = {"name": "shared", "learning_rate": 0.0, "coefficient": 0.7}
    found = updater(settings, replace(STEADY, loss="reinforce", **way))

    report = found.learn(trained, targets)

    model, head = policy(), updater(settings).critic
    by_call = {id(t.call): t.target for t in targets}
    total, values = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for item, weight in zip(trained, step_weights(trained, "token"), strict=True):
        call = item.transition
        read: Any = model.module(input_ids=torch.tensor([[*call.prompt_ids, *call.response_ids]]))
        logits = read.logits[0, len(call.prompt_ids) - 1 : -1] / call.temperature
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor([list(call.response_ids)]).T)
        total = total - weight * item.advantage * logprobs.sum()
        values = values + (plain_value(model, head, call) - by_call[id(call)]).square() / 2 / len(trained)
    torch.autograd.backward(total + 0.7 * values)
    assert report.policy is not None
    assert report.policy.loss == pytest.approx(total.item(), rel=1e-10)
    assert report.value.loss == pytest.approx(values.item(), rel=1e-10)
    assert error(gradient(found.model.parameters()), gradient(model.parameters())) < 1e-10
    assert error(gradient(found.critic.head.parameters()), gradient(head.head.parameters())) < 1e-10
    assert report.policy.tokens_read == Updater(policy(), found.config).step(trained).tokens_read


def test_within_a_step_the_clip_holds_values_back() -> None:
    trained, targets = given()
    rate = {"learning_rate": 0.05, "epochs": 6}
    free, held = (updater({"name": "own", **rate, **more}) for more in ({}, {"clip": 0.05}))
    asked = [changed_value(t, float(v)) for t, v in zip(targets, free.values([t.call for t in targets]), strict=True)]

    reports = [made.learn(trained, asked) for made in (free, held)]

    moved = [
        np.abs(made.values([t.call for t in asked]) - np.array([t.before for t in asked])).mean()
        for made in (free, held)
    ]
    assert reports[0].value.clip_fraction == 0.0 < reports[1].value.clip_fraction < 1.0
    assert moved[1] < moved[0]


def changed_value(target: ValueTarget, value: float) -> ValueTarget:
    return ValueTarget(changed(target.call, value=value), target.target)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_in_warm_up_the_critic_learns_alone(kind: str) -> None:
    made = updater({"name": kind, "learning_rate": 1e-4, "warmup_steps": 2}, replace(STEADY, learning_rate=1e-3))
    before = [p.detach().clone() for p in made.model.parameters()]
    trained, targets = given()

    reports = [made.learn(trained, targets) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(before, made.model.parameters(), strict=True))
    assert [report.policy for report in reports] == [None, None]
    assert reports[1].value.loss < reports[0].value.loss
    assert reports[0].metrics()["critic_only"] == 1
    assert reports[0].metrics()["tokens_trained"] == 0
    assert made.steps_taken == 0

    after = made.learn(trained, targets)
    assert after.policy is not None
    assert after.metrics()["critic_only"] == 0
    assert not any(torch.equal(one, other) for one, other in zip(before[:2], made.model.parameters(), strict=False))


@pytest.mark.parametrize("settings", [{"name": "own", "epochs": 2, "minibatches": 2}, {"name": "shared"}])
def test_a_checkpoint_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    options = {**settings, "learning_rate": 1e-2, "warmup_steps": 1}
    config = UpdateConfig(learning_rate=1e-3, epochs=2, minibatches=2, seed=5)
    straight, first, second = (updater(options, config, seed) for seed in (0, 0, 9))
    for step in range(4):
        straight.learn(*given(seed=step))
    for step in range(2):
        first.learn(*given(seed=step))
    load_checkpoint(save_checkpoint(tmp_path, 2, first, {}), second)
    for step in range(2, 4):
        second.learn(*given(seed=step))

    assert second.critic_steps == 4
    assert second.steps_taken == 3
    for one, other in (
        (straight.critic.weights(), second.critic.weights()),
        (straight.model.weights(), second.model.weights()),
    ):
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_with_adapters_a_checkpoint_puts_policy_and_critic_back(kind: str, tmp_path: Path) -> None:
    config = UpdateConfig(learning_rate=1e-2, lora=LoraOptions(rank=2))
    first, second = (
        ActorCritic(tiny_policy(), config, CRITICS.make({"name": kind, "learning_rate": 1e-2})) for _ in range(2)
    )
    base = first.model.module.state_dict()["model.layers.0.mlp.up_proj.base_layer.weight"].clone()
    trained, targets = given()
    calls = [target.call for target in targets]
    for _ in range(3):
        first.learn(trained, targets)
    assert not np.allclose(first.values(calls), second.values(calls))
    load_checkpoint(save_checkpoint(tmp_path, 3, first, {}), second)
    np.testing.assert_array_equal(second.values(calls), first.values(calls))
    assert torch.equal(first.model.module.state_dict()["model.layers.0.mlp.up_proj.base_layer.weight"], base)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_in_bfloat16_values_and_their_head_stay_float32(kind: str) -> None:
    trained, targets = given()
    reports = [
        ActorCritic(tiny_policy(), UpdateConfig(precision=precision), CRITICS.make(kind)).learn(trained, targets)
        for precision in ("float32", "bfloat16")
    ]
    assert reports[0].value.grad_norm == pytest.approx(reports[1].value.grad_norm, rel=0.05)
    assert reports[0].value.grad_norm != reports[1].value.grad_norm


def test_a_checkpoint_without_the_critic_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    plain, own, shared = Updater(policy(), STEADY), updater("own"), updater("shared")
    paths = [save_checkpoint(tmp_path / str(n), 1, made, {}) for n, made in enumerate((plain, own, shared))]
    with pytest.raises(PolicyError, match="holds critic, critic_optimizer, critic_steps, which this run does not have"):
        load_checkpoint(paths[1], plain)
    with pytest.raises(PolicyError, match="holds no critic"):
        load_checkpoint(paths[0], own)
    with pytest.raises((PolicyError, ValueError)):
        load_checkpoint(paths[2], own)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_target_that_is_not_finite_changes_nothing(kind: str) -> None:
    made = updater({"name": kind, "learning_rate": 1e-2, "warmup_steps": 1 if kind == "shared" else 0})
    before = {name: tensor.clone() for name, tensor in made.critic.weights().items()}
    trained, targets = given()
    with pytest.raises(TrainingError, match="must be finite"):
        made.learn(trained, [*targets[1:], ValueTarget(targets[0].call, float("nan"))])
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.critic.weights().items())


def test_a_step_without_states_is_refused() -> None:
    with pytest.raises(TrainingError, match="no state to learn from"):
        updater("own").learn(given()[0], [])


def test_explained_variance() -> None:
    targets = np.array([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(targets + 0.5, targets) == 1.0  # a constant error is the bias's, not the variance's
    assert explained_variance(np.full(4, 0.7), targets) == pytest.approx(0.0)
    assert explained_variance(1 - targets, targets) == -3.0
    assert explained_variance(targets, np.ones(4)) is None


def played() -> tuple[list[Transition], list[float], list[float]]:
    """Every call of every rollout of the game, what its rollout earned, and how often it happens."""
    calls: list[Transition] = []
    earned: list[float] = []
    often: list[float] = []
    for number, (trajectory, probability) in enumerate(game.rollouts()):
        for call in trajectory.transitions:
            model_ids = token_ids([call.prompt_ids[0] + 1])
            calls.append(changed(call, prompt_ids=model_ids, rollout_id=str(number), value=0.0))
            earned.append(trajectory.reward or 0.0)
            often.append(probability)
    return calls, earned, often


def test_a_critic_comes_to_say_what_is_to_be_expected() -> None:
    """The values of the game, from rollouts in about the proportions in which they happen."""
    calls, earned, often = played()
    copies = np.round(np.array(often) * 24).astype(int).clip(1)
    many: list[ValueTarget] = []
    for call, target, count in zip(calls, earned, copies.tolist(), strict=True):
        many += [ValueTarget(changed(call, rollout_id=f"{call.rollout_id}-{n}"), target) for n in range(count)]
    asked = [next(call for call in calls if call.prompt_ids[0] == state + 1) for state in range(game.STATES)]
    mean = [np.mean([t.target for t in many if t.call.prompt_ids == call.prompt_ids]) for call in asked]
    options = CRITICS.make({"name": "own", "learning_rate": 1e-2, "epochs": 120, "warmup_steps": 1})
    made = ActorCritic(tiny_policy(shape=TinyShape(layers=1)), UpdateConfig(), options)

    report = made.learn([], many)

    np.testing.assert_allclose(made.values(asked), mean, atol=0.02)
    # The counts are rounded, so what was seen is near to what is to be expected, and not equal.
    np.testing.assert_allclose(made.values(asked), game.expected_rewards(), atol=0.1)
    assert report.value.explained_variance == pytest.approx(0.0)
