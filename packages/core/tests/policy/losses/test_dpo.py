import math

import pytest
import torch
import torch.nn.functional

from leyden.core.errors import UsageError
from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.losses.base import LossEntries
from leyden.core.policy.losses.dpo import DPO, pair_weights
from leyden.core.policy.update.entries import step_weights
from leyden.core.policy.update.gradient import accumulate
from leyden.core.policy.update.merge import merged, unmerged
from leyden.core.policy.update.objective import Objective
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy


def pairs_of(sums: list[float], lengths: list[int]) -> LossEntries:
    """Transitions whose log-ratios to the reference add up to `sums`."""
    transition_N = torch.tensor([n for n, length in enumerate(lengths) for _ in range(length)])
    logprobs_N = torch.tensor([sums[n] / lengths[n] for n in transition_N.numpy()], dtype=torch.float64)
    rest = torch.zeros_like(logprobs_N)
    return LossEntries(
        transition_N=transition_N,
        logprobs_N=logprobs_N.requires_grad_(),
        entropy_N=rest,
        proximal_N=rest,
        reference_N=rest,
        advantages_N=rest,
        weights_N=rest + 1,
    )


def test_the_loss_is_the_mean_over_pairs_as_trl_writes_it() -> None:
    """TRL's sigmoid loss: -logsigmoid(beta * (chosen_logratios - rejected_logratios)), then the mean."""
    sums, lengths = [1.0, -2.0, 0.5, 3.0], [2, 5, 1, 3]
    seen = pairs_of(sums, lengths)
    per_pair = {0: 7, 1: 4}
    weights_N = torch.tensor([1 / (2 * per_pair[int(n) // 2]) for n in seen.transition_N], dtype=torch.float64)

    found = (weights_N * DPO(beta=0.3).of(seen).loss_N).sum()

    margins = 0.3 * torch.tensor([1.0 - -2.0, 0.5 - 3.0], dtype=torch.float64)
    assert found.item() == pytest.approx((-torch.nn.functional.logsigmoid(margins)).mean().item(), rel=1e-14)
    (gradient_N,) = torch.autograd.grad(found, [seen.logprobs_N])
    push = [0.3 / (1 + math.exp(margin)) / 2 for margin in margins.numpy()]
    expected = [-push[0]] * 2 + [push[0]] * 5 + [-push[1]] + [push[1]] * 3
    assert gradient_N.numpy().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.1, 0.4])
def test_label_smoothing_is_that_of_conservative_dpo(smoothing: float) -> None:
    """TRL's: -logsigmoid(beta * logits) * (1 - label_smoothing) - logsigmoid(-beta * logits) * label_smoothing."""
    sums = [1.0, -2.0, 0.5, 3.0]
    found = DPO(beta=0.3, label_smoothing=smoothing).of(pairs_of(sums, [1, 1, 1, 1]))

    margins = 0.3 * torch.tensor([1.0 - -2.0, 0.5 - 3.0], dtype=torch.float64)
    log_sigmoid = torch.nn.functional.logsigmoid
    expected = -log_sigmoid(margins) * (1 - smoothing) - log_sigmoid(-margins) * smoothing
    assert found.loss_N.detach().numpy() == pytest.approx(expected.repeat_interleave(2).numpy(), rel=1e-14)
    noted = {name: values.numpy() for name, values in found.noted.items()}
    assert noted["dpo_margin"] == pytest.approx(margins.numpy(), rel=1e-14)
    assert noted["dpo_accuracy"] == pytest.approx([1.0, 0.0])
    assert noted["dpo_chosen"] == pytest.approx([0.3, 0.15])
    assert noted["dpo_rejected"] == pytest.approx([-0.6, 0.9])


@pytest.mark.parametrize("options", [{"beta": 0.0}, {"label_smoothing": -0.1}, {"label_smoothing": 0.5}])
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        DPO(**options)


def test_pair_weights_add_up_to_one_and_are_equal_over_pairs() -> None:
    pairs = synthetic_rollouts(2, 64)  # two calls each: here the chosen and the rejected of a pair
    weights = pair_weights(pairs)
    lengths = [len(item.transition.response_ids) for item in pairs]
    of_pair = [sum(weights[i] * lengths[i] for i in (2 * p, 2 * p + 1)) for p in range(2)]
    assert of_pair == pytest.approx([0.5, 0.5])


def test_pairs_are_kept_together_whatever_the_batches() -> None:
    model = tiny_policy()
    pairs = synthetic_rollouts(4, 64)
    sequences = unmerged(pairs, pair_weights(pairs))
    for sequence in sequences:
        sequence.entries.reference_N[:] = -4.0
    found: list[tuple[float, torch.Tensor]] = []
    for budget in (1, 60, 10_000):
        model.module.zero_grad()
        exactness = Capabilities(plain_head=True, shared_prefix=budget == 60)
        loss = accumulate(model, sequences, Objective(loss=DPO()), budget, exactness).loss
        found.append((loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))

    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-6)


def test_pairs_that_were_merged_are_refused() -> None:
    model = tiny_policy()
    pairs = synthetic_rollouts(2, 64)
    exactness = Capabilities(plain_head=True, shared_prefix=False)
    with pytest.raises(ValueError, match="each of them must be one sequence"):
        accumulate(model, merged(pairs, pair_weights(pairs)), Objective(loss=DPO()), 1000, exactness)


def test_a_missing_reference_cannot_go_unnoticed() -> None:
    model = tiny_policy()
    pairs = synthetic_rollouts(1, 64)
    sequences = unmerged(pairs, step_weights(pairs, "token"))
    exactness = Capabilities(plain_head=True, shared_prefix=False)
    assert math.isnan(accumulate(model, sequences, Objective(loss=DPO()), 1000, exactness).loss)
