"""Values, and the loss they are learned by, against plain forward passes and plain formulas."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leyden.core.data.encoding.tokens import token_ids
from leyden.core.data.transition import Transition
from leyden.core.errors import PolicyError, TrainingError, UsageError
from leyden.core.policy.capability_checks import prove
from leyden.core.policy.critic.critic import Critic, readable, states
from leyden.core.policy.critic.options import CRITICS
from leyden.core.policy.critic.value_loss import ValueTarget, value_loss
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_models import tiny_model

SHAPE = RolloutShape(system=20, question=3, calls=(4, 3, 2), observation=4)


def drawn(count: int = 5) -> list[Transition]:
    return [item.transition for item in synthetic_rollouts(count, 61, shape=SHAPE, single_call_share=0.3)]


def with_random_head(critic: Critic) -> Critic:
    generator = torch.Generator().manual_seed(3)
    critic.head.weight.data.normal_(generator=generator)
    critic.head.bias.data.normal_(generator=generator)
    return critic


def plain_value(policy: nn.Module, critic: Critic, call: Transition) -> Tensor:
    """The value by the model's own last hidden state of the prompt alone."""
    output: Any = policy(input_ids=torch.tensor([list(call.prompt_ids)]), output_hidden_states=True)
    return output.hidden_states[-1][0, -1] @ critic.head.weight[0] + critic.head.bias[0]


@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize(("family", "tolerance"), [("gpt2", 1e-12), ("qwen3", 2e-5), ("qwen2", 2e-5), ("gemma2", 2e-5)])
def test_a_value_is_the_head_on_the_last_state_of_the_prompt(kind: str, family: str, tolerance: float) -> None:
    module = tiny_model(family)
    policy = PolicyModel(module.double() if family == "gpt2" else module, family)
    calls = drawn()
    exactness = prove(policy)
    critic = with_random_head(Critic.on(policy) if kind == "shared" else Critic.beside_policy(policy))
    with torch.no_grad():
        expected = [plain_value(policy.module, critic, call).item() for call in calls]

    for budget in (1, 90, 100_000):
        found = critic.values(calls, budget, exactness)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert np.ptp(expected) > 0.1


def test_at_first_nothing_is_expected_of_any_state() -> None:
    policy = tiny_policy()
    assert not Critic.beside_policy(policy).values(drawn(2), 4096, prove(policy)).any()


def test_an_own_backbone_is_a_copy_without_the_output_head() -> None:
    policy = tiny_policy(shape=TinyShape(tied=False))
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    critic = Critic.beside_policy(policy)
    names = {name for name, _ in critic.backbone.module.named_parameters()}
    assert {name for name, _ in policy.module.named_parameters()} - names == {"lm_head.weight"}
    for parameter in critic.parameters():
        parameter.data.add_(1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))


def test_with_adapters_the_critic_trains_adapters_of_its_own() -> None:
    policy = tiny_policy()
    policy.adapt(LoraOptions(rank=2))
    critic = Critic.beside_policy(policy)
    own, theirs = list(critic.backbone.parameters()), list(policy.parameters())
    assert len(own) == len(theirs) > 0
    assert not {id(parameter) for parameter in own} & {id(parameter) for parameter in theirs}
    assert sum(p.numel() for p in critic.parameters()) < 0.5 * sum(p.numel() for p in policy.module.parameters())
    assert {name for name in critic.weights() if not name.startswith("backbone.")} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("shared", [True, False])
def test_weights_put_a_critic_back(shared: bool) -> None:
    policy = tiny_policy()
    first, second = (Critic.on(policy) if shared else Critic.beside_policy(policy) for _ in range(2))
    with_random_head(first)
    if not shared:
        for parameter in first.backbone.parameters():
            parameter.data.add_(0.01)
    second.load_weights({name: tensor.clone() for name, tensor in first.weights().items()})
    assert first.weights().keys() == second.weights().keys()
    assert all(torch.equal(tensor, second.weights()[name]) for name, tensor in first.weights().items())
    assert len(first.weights()) == (2 if shared else 2 + len(policy.weights()))


def test_the_weights_of_another_model_are_refused() -> None:
    policy, other = tiny_policy(), tiny_policy(shape=TinyShape(layers=1))
    with pytest.raises(PolicyError, match="do not belong"):
        Critic.beside_policy(policy).load_weights(Critic.beside_policy(other).weights())
    wider = tiny_policy(shape=TinyShape(hidden=64))
    with pytest.raises(PolicyError, match="value head"):
        Critic.on(policy).load_weights(Critic.on(wider).weights())


def test_each_call_has_one_state_and_merging_reads_no_token_twice() -> None:
    calls = drawn()
    merged, apart = states(calls), states(calls, merge=False)
    assert len(apart) == len(calls) > len(merged) == 5
    for sequences in (merged, apart):
        found = {
            int(n): int(p) for s in sequences for n, p in zip(s.entries.transition_N, s.entries.position_N, strict=True)
        }
        assert found == {number: len(call.prompt_ids) - 1 for number, call in enumerate(calls)}


def test_what_can_be_read() -> None:
    (call, *_) = drawn(1)
    tokens = len(call.prompt_ids) + len(call.response_ids)
    assert readable(call, None) and readable(call, tokens)
    assert not readable(call, tokens - 1)
    assert not readable(replace(call, prompt_ids=token_ids([])), None)
    assert not readable(replace(call, response_ids=token_ids([])), None)


def by_hand(value: float, before: float, target: float, clip: float | None) -> float:
    plain = (value - target) ** 2 / 2
    if clip is None:
        return plain
    held = min(max(value, before - clip), before + clip)
    return max(plain, (held - target) ** 2 / 2)


GRID: list[tuple[float, float, float]] = list(
    itertools.product((-1.3, -0.12, 0.15, 0.87), (-0.4, 0.0, 0.7), (-1.0, 0.2, 1.1))
)


@pytest.mark.parametrize("clip", [None, 0.2, 0.5])
def test_the_loss_and_its_gradient_are_those_of_the_formula(clip: float | None) -> None:
    values, before, targets = (torch.tensor(column, dtype=torch.float64) for column in zip(*GRID, strict=True))
    values.requires_grad_(True)
    loss_N, held_N = value_loss(values, before, targets, clip)
    torch.autograd.backward(loss_N.sum())
    assert values.grad is not None

    np.testing.assert_allclose(loss_N.detach(), [by_hand(*row, clip) for row in GRID], rtol=1e-12)
    step = 1e-6
    slopes = [
        (by_hand(value + step, start, target, clip) - by_hand(value - step, start, target, clip)) / (2 * step)
        for value, start, target in GRID
    ]
    np.testing.assert_allclose(values.grad, slopes, atol=1e-6)
    came_closer = [
        clip is not None
        and abs(value - start) > clip
        and (target - start) * (value - start) > 0
        # It holds the value back while what it would say at the clip is still the worse of the two.
        and abs(start + math.copysign(clip, value - start) - target) > abs(value - target)
        for value, start, target in GRID
    ]
    np.testing.assert_array_equal(held_N.numpy(), came_closer)
    assert any(came_closer) == (clip is not None)
    assert not values.grad[held_N].any()


def test_a_target_needs_what_the_critic_said() -> None:
    (call, *_) = drawn(1)
    with pytest.raises(TrainingError, match="did not value before"):
        _ = ValueTarget(call, 1.0).before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "own", "learning_rate": -1.0}, "learning_rate must not be negative"),
        ({"name": "own", "warmup_steps": -1}, "warmup_steps"),
        ({"name": "own", "clip": 0.0, "epochs": 2}, "clip must be a number above 0"),
        ({"name": "own", "clip": 0.2}, "clip has no effect with one optimizer step"),
        ({"name": "own", "epochs": 0}, "epochs must be at least 1"),
        ({"name": "own", "coefficient": 0.5}, "'own' has no option 'coefficient'"),
        ({"name": "shared", "coefficient": 0.0}, "coefficient must be a number above 0"),
        ({"name": "shared", "epochs": 2}, "'shared' has no option 'epochs'"),
        ("lent", "unknown critic 'lent'; use one of own, shared"),
    ],
)
def test_options_that_cannot_work_are_refused(settings: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        CRITICS.make(settings)
    assert "\n" not in str(caught.value)
