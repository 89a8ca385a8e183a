"""Tokens that nobody knows the drawing of, and transitions that are taken in pairs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leyden.core.data.encoding.tokens import log_probs, token_ids
from leyden.core.errors import TrainingError, UsageError
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig, UpdateOptions
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy

SFT = UpdateConfig(learning_rate=1e-3, loss="sft")
DPO = UpdateConfig(learning_rate=1e-3, loss={"name": "dpo", "beta": 0.5})


def unrecorded(items: Sequence[WeightedTransition]) -> list[WeightedTransition]:
    return [
        replace(item, transition=replace(item.transition, logprobs=log_probs([]), temperature=1.0)) for item in items
    ]


def total(model: PolicyModel, item: WeightedTransition) -> float:
    t = item.transition
    return sum(score(model, [*t.prompt_ids, *t.response_ids])[len(t.prompt_ids) - 1 :])


def gradient(model: PolicyModel) -> NDArray[np.float64]:
    return np.concatenate([p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None])


def pairs(count: int) -> list[WeightedTransition]:
    """Answers of different lengths to the same prompts, chosen and rejected in turn."""
    found: list[WeightedTransition] = []
    for item in unrecorded(synthetic_rollouts(count, 64, single_call_share=1.0)):
        other = replace(item.transition, response_ids=token_ids([7, 8, 9]), rollout_id=item.transition.rollout_id + "b")
        found += [item, replace(item, transition=other)]
    return found


def test_tokens_of_unknown_drawing_are_learned_by_a_loss_that_takes_no_ratios() -> None:
    model, items = tiny_policy(), unrecorded(synthetic_rollouts(3, 64))
    tokens = sum(len(item.transition.response_ids) for item in items)
    before = -sum(total(model, item) for item in items) / tokens
    updater = Updater(model, SFT)

    assert updater.held_out(items)["loss"] == pytest.approx(before, rel=1e-5)
    report = updater.step(items)

    assert report.loss == pytest.approx(before, rel=1e-5)
    assert report.diagnostics.tokens == report.tokens == tokens
    assert report.skipped == {}
    assert updater.held_out(items)["loss"] < before
    names = report.metrics().keys()
    assert not [name for name in names if "ratio" in name or name in ("approx_kl", "mismatch_kl")]
    assert math.isfinite(report.metrics()["entropy"])


def test_recorded_and_unrecorded_tokens_give_one_gradient() -> None:
    recorded = synthetic_rollouts(3, 64)
    recorded = [replace(item, transition=replace(item.transition, temperature=1.0)) for item in recorded]
    found: list[NDArray[np.float64]] = []
    for items in (recorded, unrecorded(recorded)):
        model = tiny_policy()
        Updater(model, SFT).step(items)
        found.append(np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]))
    assert np.array_equal(found[0], found[1])


def test_ratios_are_reported_where_they_are_known() -> None:
    items = synthetic_rollouts(2, 64)
    report = Updater(tiny_policy(), SFT).step([items[0], *unrecorded(items[1:])])
    assert report.diagnostics.ratios.count == len(items[0].transition.response_ids)
    assert report.diagnostics.tokens == report.tokens


@pytest.mark.parametrize(
    "config", [UpdateConfig(), UpdateConfig(loss="rejection", correction="truncated"), UpdateConfig(loss="cispo")]
)
def test_a_loss_that_reads_how_tokens_were_drawn_skips_those_where_it_is_unknown(config: UpdateConfig) -> None:
    with pytest.raises(TrainingError, match="log-probabilities do not match"):
        Updater(tiny_policy(), config).step(unrecorded(synthetic_rollouts(2, 64)))


def test_there_must_be_something_to_measure() -> None:
    with pytest.raises(TrainingError, match="no transition to measure: 0 given"):
        Updater(tiny_policy(), SFT).held_out([])


def test_the_first_step_on_pairs_has_no_margin_and_moves_towards_the_chosen() -> None:
    model, items = tiny_policy(), pairs(3)
    before = [total(model, item) for item in items]
    updater = Updater(model, DPO)

    first = updater.step(items)
    moved = [total(model, item) - was for item, was in zip(items, before, strict=True)]
    second = updater.step(items)

    assert first.loss == pytest.approx(math.log(2), rel=1e-5)
    assert first.metrics()["dpo_margin"] == pytest.approx(0.0, abs=1e-4)
    margins = [0.5 * (moved[at] - moved[at + 1]) for at in range(0, len(items), 2)]
    assert min(margins) > 0
    assert second.metrics()["dpo_margin"] == pytest.approx(sum(margins) / 3, rel=1e-3)
    assert second.metrics()["dpo_accuracy"] == 1.0
    assert second.loss == pytest.approx(sum(math.log1p(math.exp(-m)) for m in margins) / 3, rel=1e-4)


@pytest.mark.parametrize("token_budget", [1, 40, 4096])
def test_the_gradient_of_pairs_is_that_of_the_published_formula_whatever_the_batches(token_budget: int) -> None:
    """-logsigmoid(β (log π/π_ref of the chosen - log π/π_ref of the rejected)), averaged over pairs, in float64."""
    items = pairs(4)
    model, reference = tiny_policy(), tiny_policy()
    for policy in (model, reference):
        policy.module.double()
    config = msgspec.structs.replace(DPO, token_budget=token_budget, max_grad_norm=1e9)
    initial = [total(reference, item) for item in items]
    expected = _published(reference, items, initial, beta=0.5)
    updater = Updater(model, config)
    updater.optimizer.step = lambda: None  # pyright: ignore[reportAttributeAccessIssue] -- only the gradient is wanted

    updater.step(items)

    found = gradient(model)
    assert np.linalg.norm(found - expected) <= 1e-9 * np.linalg.norm(expected)


def _published(
    model: PolicyModel, items: list[WeightedTransition], initial: list[float], beta: float
) -> NDArray[np.float64]:
    """The gradient of the formula, one plain forward pass for each transition."""
    sums: list[torch.Tensor] = []
    for item in items:
        t = item.transition
        ids = torch.tensor([[*t.prompt_ids, *t.response_ids]])
        logits_TV = model.module(input_ids=ids).logits[0, len(t.prompt_ids) - 1 : -1]
        sums.append(logits_TV.log_softmax(-1).gather(1, torch.tensor([list(t.response_ids)]).T).sum())
    ratios = [value - start for value, start in zip(sums, initial, strict=True)]
    losses = [
        -torch.nn.functional.logsigmoid(beta * (chosen - rejected))
        for chosen, rejected in zip(ratios[::2], ratios[1::2], strict=True)
    ]
    torch.autograd.backward(torch.stack(losses).mean())
    return gradient(model)


def test_minibatches_deal_pairs_whole() -> None:
    items = pairs(5)
    report = Updater(tiny_policy(), msgspec.structs.replace(DPO, minibatches=3)).step(items)
    assert report.optimizer_steps == 3
    assert report.diagnostics.units == 5
    assert report.transitions == 10


def test_a_pair_of_which_one_cannot_be_trained_is_left_out_whole() -> None:
    items = pairs(2)
    long = token_ids([1] * 600)
    items[1] = replace(items[1], transition=replace(items[1].transition, response_ids=long))
    report = Updater(tiny_policy(), DPO).step(items)
    assert report.skipped == {"longer than the model's context": 2}
    assert report.transitions == 2


def test_a_loss_of_pairs_needs_an_algorithm_that_deals_them() -> None:
    with pytest.raises(UsageError, match="takes 2 transitions at a time, and this algorithm passes 1"):
        UpdateOptions(loss="dpo")
    with pytest.raises(UsageError, match="normalisation has no effect on loss"):
        UpdateConfig(loss="dpo", normalisation="rollout")
