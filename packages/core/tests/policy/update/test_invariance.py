"""Every loss through the real `Updater`, in float64: against a plain loop, and however it is batched or merged.

Of all weights, and of adapters alone.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition, behaviour, step_weights
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts, with_adapters
from leyden.core.testing.tiny_models import tiny_model

SHAPE = RolloutShape(system=20, question=3, calls=(4, 3), observation=4)
STEADY = {"learning_rate": 0.0, "max_grad_norm": 1e9}
LORA = LoraOptions(rank=3, alpha=5.0)


def policy(seed: int = 0) -> PolicyModel:
    """gpt2, because its layer norms stay in float64."""
    return PolicyModel(tiny_model("gpt2", seed).double(), f"gpt2-{seed}")


def adapted() -> PolicyModel:
    return with_adapters(policy(), LORA)


@pytest.fixture(scope="module")
def trained() -> list[WeightedTransition]:
    """Rollouts of a policy near by: some ratios clip, and some importance weights are out of bounds."""
    drawn = synthetic_rollouts(5, 61, shape=SHAPE, single_call_share=0.3)
    model = policy()
    for item in drawn:
        t = item.transition
        own = score(model, [*t.prompt_ids, *t.response_ids])[len(t.prompt_ids) - 1 :]
        for j, value in enumerate(own):
            t.logprobs[j] = value + 0.5 * math.sin(j + item.advantage)
    return drawn


def step(
    trained: list[WeightedTransition], values: dict[str, Any], *, lora: bool = False, **how: Any
) -> tuple[Tensor, Any]:
    """Gradient and report of one step of a policy that has moved away from its reference."""
    model, options = (adapted(), LORA) if lora else (policy(), None)
    updater = Updater(model, UpdateConfig(**STEADY, **values, **how, lora=options))
    if updater.reference is not None and not lora:
        updater.reference.load_weights(policy(seed=1).weights())
    report = updater.step(trained)
    found = [p.grad.flatten() for p in updater.model.parameters() if p.grad is not None]
    return torch.cat(found), report


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().sum() / expected.square().sum()).sqrt().item()


Formula = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(log-probabilities, proximal ones, reference ones, advantage) of a transition -> the loss of its tokens."""


def surrogate(ratio: Tensor, advantage: Tensor | float, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def gspo(new: Tensor, old: Tensor, _: Tensor, advantage: float) -> Tensor:
    return surrogate((new - old).mean().exp(), advantage, 0.05, 0.05).expand(len(new))


def dual(new: Tensor, old: Tensor, _: Tensor, advantage: float) -> Tensor:
    plain = surrogate((new - old).exp(), advantage, 0.2, 0.2)
    return plain.clamp(max=-1.3 * advantage) if advantage < 0 else plain


def cispo(new: Tensor, old: Tensor, _: Tensor, advantage: float) -> Tensor:
    return -(new - old).exp().detach().clamp(0.8, 1.2) * advantage * new


def with_k3(new: Tensor, old: Tensor, reference: Tensor, advantage: float) -> Tensor:
    return surrogate((new - old).exp(), advantage, 0.2, 0.2) + 0.5 * ((reference - new).exp() - 1 - reference + new)


def with_k2(new: Tensor, old: Tensor, reference: Tensor, advantage: float) -> Tensor:
    return surrogate((new - old).exp(), advantage, 0.2, 0.2) + 0.5 * (reference - new).square() / 2


FORMULAS: dict[str, tuple[dict[str, Any], Formula]] = {
    "ppo_clip": ({"normalisation": "rollout"}, lambda n, o, r, a: surrogate((n - o).exp(), a, 0.2, 0.2)),
    "dual_clip": ({"loss": {"name": "dual_clip", "clip_dual": 1.3}}, dual),
    "cispo": ({"loss": {"name": "cispo", "clip_low": 0.2, "clip_high": 0.2}}, cispo),
    "gspo": ({"loss": {"name": "gspo", "clip_low": 0.05, "clip_high": 0.05}}, gspo),
    "reinforce": ({"loss": "reinforce"}, lambda n, o, r, a: -a * n),
    "rejection": ({"loss": "rejection"}, lambda n, o, r, a: -n * float(a > 0)),
    "sft": ({"loss": "sft"}, lambda n, o, r, a: -n),
    "k2": ({"kl_loss": 0.5}, with_k2),
    "k3": ({"kl_loss": 0.5, "kl_estimator": "k3"}, with_k3),
    "constant": (
        {"normalisation": "constant", "tokens_per_rollout": 11},
        lambda n, o, r, a: surrogate((n - o).exp(), a, 0.2, 0.2),
    ),
}
"""Settings, and the same thing as a plain formula."""


def token_logprobs(model: PolicyModel, item: WeightedTransition) -> Tensor:
    t = item.transition
    read = torch.tensor([[*t.prompt_ids, *t.response_ids]])
    logits: Tensor = model.module(input_ids=read).logits[0, len(t.prompt_ids) - 1 : -1] / t.temperature
    return logits.log_softmax(-1).gather(1, torch.tensor([list(t.response_ids)]).T)[:, 0]


def by_loop(
    trained: list[WeightedTransition],
    values: dict[str, Any],
    formula: Formula,
    model: PolicyModel | None = None,
    reference: PolicyModel | None = None,
) -> tuple[float, Tensor]:
    """One plain forward pass per transition."""
    model, reference = model or policy(), reference or policy(seed=1)
    weights = step_weights(trained, values.get("normalisation", "token"), values.get("tokens_per_rollout"))
    total = torch.zeros((), dtype=torch.float64)
    for item, weight in zip(trained, weights, strict=True):
        with torch.no_grad():
            reference_T = token_logprobs(reference, item)
        old_T = torch.tensor(behaviour(item.transition))
        total = total + weight * formula(token_logprobs(model, item), old_T, reference_T, item.advantage).sum()
    torch.autograd.backward(total)
    return total.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", FORMULAS)
def test_a_step_has_the_gradient_of_the_formula(trained: list[WeightedTransition], name: str) -> None:
    values, formula = FORMULAS[name]
    expected_loss, expected = by_loop(trained, values, formula)

    found, report = step(trained, values, token_budget=90)

    assert report.loss == pytest.approx(expected_loss, rel=1e-10)
    assert relative_error(found, expected) < 1e-10


@pytest.mark.parametrize("how", [{"token_budget": 90}, {"token_budget": 100_000}, {"token_budget": 1, "merge": False}])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_record_of_a_step_has_each_tokens_loss(
    trained: list[WeightedTransition], name: str, lora: bool, how: dict[str, Any]
) -> None:
    values, formula = FORMULAS[name]
    own, merged = adapted(), policy()
    merged.load_weights(own.weights())
    model, reference = (merged, policy()) if lora else (policy(), policy(seed=1))
    weights = step_weights(trained, values.get("normalisation", "token"), values.get("tokens_per_rollout"))

    _, report = step(trained, values, lora=lora, **how)

    recorded = {id(call.transition): call.numbers for call in report.calls}
    assert recorded.keys() == {id(item.transition) for item in trained}
    assert math.fsum(x for call in report.calls for x in call.numbers.losses) == pytest.approx(report.loss, rel=1e-10)
    for item, weight in zip(trained, weights, strict=True):
        with torch.no_grad():
            logprobs = token_logprobs(model, item)
            old = torch.tensor(behaviour(item.transition))
            losses = weight * formula(logprobs, old, token_logprobs(reference, item), item.advantage)
        numbers = recorded[id(item.transition)]
        assert numbers.logprobs == pytest.approx(logprobs.numpy(), rel=1e-9, abs=1e-12)
        assert numbers.log_ratios == pytest.approx((logprobs - old).numpy(), rel=1e-9, abs=1e-9)
        assert numbers.losses == pytest.approx(losses.numpy(), rel=1e-8, abs=1e-12)
        assert set(numbers.advantages) == {item.advantage}
        assert numbers.weights == pytest.approx([weight] * len(losses))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_step_of_adapters_has_the_gradient_of_the_merged_weights(
    trained: list[WeightedTransition], name: str
) -> None:
    """By the chain rule through W + s B A: dA = s Bᵀ dW and dB = s dW Aᵀ, dW being that of a plain model."""
    values, formula = FORMULAS[name]
    own, merged = adapted(), policy()
    merged.load_weights(own.weights())
    expected_loss, _ = by_loop(trained, values, formula, merged, policy())
    scale, weights, gradients = 5.0 / 3, own.trained_weights(), list[Tensor]()
    for parameter in weights:
        layer = parameter.partition(".lora_")[0]
        slope: Any = merged.module.get_parameter(f"{layer}.weight").grad
        down, up = (weights[f"{layer}.lora_{which}.default.weight"] for which in "AB")
        # gpt2 keeps its weights as (in, out)
        gradients.append(scale * (up.T @ slope.T if ".lora_A." in parameter else slope.T @ down.T))

    found, report = step(trained, values, lora=True, token_budget=90)

    assert report.loss == pytest.approx(expected_loss, rel=1e-10)
    assert relative_error(found, torch.cat([gradient.flatten() for gradient in gradients])) < 1e-10


SETTINGS: dict[str, dict[str, Any]] = {
    **{name: values for name, (values, _) in FORMULAS.items() if name in ("gspo", "cispo", "k3")},
    "truncated": {"correction": {"name": "truncated", "high": 1.2}, "loss": "reinforce"},
    "masked": {"correction": {"name": "masked", "level": "transition", "low": 0.02, "high": 50.0}},
    "kl in the reward": {"kl_reward": 0.2, "normalisation": "rollout"},
    "entropy": {"entropy_bonus": 0.3, "loss": "sft"},
    "everything": {
        "loss": "gspo",
        "correction": "truncated",
        "kl_loss": 0.1,
        "kl_reward": 0.1,
        "entropy_bonus": 0.1,
        "normalisation": "rollout",
    },
}


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_batching_merging_and_order_change_nothing(trained: list[WeightedTransition], name: str, lora: bool) -> None:
    values = SETTINGS[name]
    plain, first = step(trained, values, lora=lora, token_budget=1, merge=False, share_prefix=False)
    ways: list[dict[str, Any]] = [
        {"token_budget": 100_000},
        {"token_budget": 100, "merge": False},
        {"token_budget": 64, "share_prefix": False},
    ]
    groups: dict[tuple[str, str], list[WeightedTransition]] = {}
    for item in trained:
        groups.setdefault(item.rollout, []).append(item)
    mixed = list(groups.values())
    random.Random(1).shuffle(mixed)
    given = [trained, trained, [item for rollout in mixed for item in rollout]]

    for way, items in zip(ways, given, strict=True):
        found, report = step(items, values, lora=lora, **way)
        assert relative_error(found, plain) < 1e-10
        assert report.loss == pytest.approx(first.loss, rel=1e-10)
        assert report.metrics() == pytest.approx(
            {**first.metrics(), **{key: report.metrics()[key] for key in ("tokens_read", "sequences")}}, rel=1e-8
        )


def test_the_entropy_bonus_is_the_gradient_of_the_mean_entropy(trained: list[WeightedTransition]) -> None:
    model = policy()
    tokens = sum(len(item.transition.response_ids) for item in trained)
    total = torch.zeros((), dtype=torch.float64)
    for item in trained:
        t = item.transition
        logits: Tensor = model.module(input_ids=torch.tensor([[*t.prompt_ids, *t.response_ids]])).logits[0]
        distribution: Any = torch.distributions.Categorical(logits=logits[len(t.prompt_ids) - 1 : -1] / t.temperature)
        total = total - 0.3 * distribution.entropy().sum() / tokens
    torch.autograd.backward(total)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    with_bonus, _ = step(trained, {"loss": "sft", "entropy_bonus": 0.3})
    without, _ = step(trained, {"loss": "sft"})

    assert relative_error(with_bonus - without, expected) < 1e-9


def test_a_correction_starts_from_the_trainers_own_log_probabilities(trained: list[WeightedTransition]) -> None:
    plain, first = step(trained, {})
    found, report = step(trained, {"correction": "recomputed"})

    assert first.importance_ratio_deviation == pytest.approx(report.importance_ratio_deviation, rel=1e-9)
    assert report.importance_ratio_deviation > 0.3
    assert report.diagnostics.ratios.deviation < 1e-12
    assert first.diagnostics.clip_fraction > 0 == report.diagnostics.clip_fraction
    assert report.mismatch.corrected_fraction == 0.0
    assert relative_error(found, plain) > 0.01


def test_truncated_importance_sampling_is_the_decoupled_objective(trained: list[WeightedTransition]) -> None:
    """Σ w min(π_start / π_behaviour, 1.2) A log π, as REINFORCE has no ratio of its own."""
    model = policy()
    weights = step_weights(trained, "token")
    total = torch.zeros((), dtype=torch.float64)
    beyond = 0
    for item, weight in zip(trained, weights, strict=True):
        new_T = token_logprobs(model, item)
        ratio_T = (new_T.detach() - torch.tensor(behaviour(item.transition))).exp()
        beyond += int((ratio_T > 1.2).sum())
        total = total - (weight * ratio_T.clamp(max=1.2) * item.advantage * new_T).sum()
    torch.autograd.backward(total)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    found, report = step(trained, SETTINGS["truncated"])

    assert relative_error(found, expected) < 1e-10
    assert report.mismatch.corrected_fraction == pytest.approx(beyond / report.tokens)
    assert 0 < report.mismatch.ratios.effective_share < 1


def test_short_cuts_are_in_use() -> None:
    drawn = synthetic_rollouts(5, 61, shape=SHAPE)
    reads = [step(drawn, {}, share_prefix=share)[1].tokens_read for share in (True, False)]
    assert reads[0] < reads[1]
