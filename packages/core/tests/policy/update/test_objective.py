import math
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from leyden.core.policy.losses.base import LossEntries
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.losses.reinforce import Reinforce
from leyden.core.policy.update.diagnostics import Diagnostics
from leyden.core.policy.update.objective import Objective

EVERYTHING = Objective(loss=PPOClip(), kl=0.3, kl_estimator="k3", entropy=0.2)


def drawn(count: int, logprobs_N: Tensor | None = None, entropy_N: Tensor | None = None) -> LossEntries:
    generator = torch.Generator().manual_seed(0)

    def column(spread: float = 1.0) -> Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64) * spread

    found = LossEntries(
        transition_N=torch.arange(count) // 3,
        logprobs_N=-column(),
        entropy_N=column(),
        proximal_N=-column(),
        reference_N=-column(),
        advantages_N=column() - 0.5,
        weights_N=column(),
    )
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    given = {"logprobs_N": logprobs_N, "entropy_N": entropy_N}
    return LossEntries(**values | {name: value for name, value in given.items() if value is not None})


def part_of(seen: LossEntries, start: int, end: int) -> LossEntries:
    return LossEntries(**{field.name: getattr(seen, field.name)[start:end] for field in fields(seen)})


def test_every_term_has_the_weights_of_the_entries() -> None:
    seen = drawn(12)
    x_N = seen.reference_N - seen.logprobs_N
    terms_N = PPOClip().of(seen).loss_N + 0.3 * (x_N.exp() - 1 - x_N) - 0.2 * seen.entropy_N
    assert EVERYTHING.of(seen).value.item() == pytest.approx((seen.weights_N * terms_N).sum().item(), rel=1e-12)


def test_gradients_reach_log_probabilities_and_entropies() -> None:
    logprobs_N, entropy_N = (torch.rand(12, dtype=torch.float64).requires_grad_() for _ in range(2))
    value = EVERYTHING.of(drawn(12, logprobs_N, entropy_N)).value
    by_logprob, by_entropy = torch.autograd.grad(value, [logprobs_N, entropy_N])
    assert bool(by_logprob.any())
    torch.testing.assert_close(by_entropy, -0.2 * drawn(12).weights_N)


@pytest.mark.parametrize("cut", [3, 6, 9])
def test_values_and_diagnostics_of_parts_make_the_whole(cut: int) -> None:
    seen = drawn(12)
    parts = [EVERYTHING.of(part_of(seen, 0, cut)), EVERYTHING.of(part_of(seen, cut, 12))]
    whole = EVERYTHING.of(seen)

    assert sum(part.value.item() for part in parts) == pytest.approx(whole.value.item(), rel=1e-12)
    joined = Diagnostics.combined([part.diagnostics for part in parts])
    assert (joined.tokens, joined.clipped) == (whole.diagnostics.tokens, whole.diagnostics.clipped)
    assert joined.ratios.quantile(0.9) == whole.diagnostics.ratios.quantile(0.9)
    assert joined.metrics() == pytest.approx(whole.diagnostics.metrics(), rel=1e-12)


def test_diagnostics_of_a_hand_worked_case() -> None:
    ratios, advantages = [1.0, 1.5, 0.5, 1.5], [1.0, 1.0, 1.0, -1.0]
    rest = torch.zeros(4, dtype=torch.float64)
    seen = LossEntries(
        transition_N=torch.arange(4),
        logprobs_N=torch.tensor(ratios, dtype=torch.float64).log(),
        entropy_N=torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64),
        proximal_N=rest,
        reference_N=rest * math.nan,
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        weights_N=rest + 1,
    )

    found = Objective(loss=PPOClip()).of(seen).diagnostics

    assert (found.tokens, found.clipped, found.clip_fraction, found.entropy) == (4, 1, 0.25, 3.0)
    assert found.ratios.mean == pytest.approx(1.125)
    assert found.reference_kl_total is None
    assert "reference_kl" not in found.metrics()
    assert Objective(loss=Reinforce()).of(seen).diagnostics.clip_fraction == 0.0


def test_a_reference_that_is_used_and_missing_makes_the_value_no_number() -> None:
    seen = drawn(3)
    missing = {field.name: getattr(seen, field.name) for field in fields(seen)}
    missing["reference_N"] = missing["reference_N"] * math.nan
    assert math.isnan(Objective(loss=PPOClip(), kl=0.1).of(LossEntries(**missing)).value.item())
