import math

import pytest
import torch
from torch import Tensor

from leyden.core.policy.update.entries import WeightedTransition, behaviour
from leyden.core.policy.update.kl import kl_terms, reward_penalties
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts

RESPONSES = (3, 5, 2, 4)


def waves() -> tuple[Tensor, Tensor]:
    at = [(i, t) for i, length in enumerate(RESPONSES) for t in range(length)]
    own = torch.tensor([-1 - math.sin(3 * i + t) for i, t in at], dtype=torch.float64)
    return own, own + torch.tensor([0.4 * math.sin(7 * i + t) for i, t in at], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "verl"), [("k1", -1.192848473477311), ("k2", 0.6441237393193638), ("k3", 0.6722200788684836)]
)
def test_terms_equal_verls(estimator: str, verl: float) -> None:
    """VERL 0.9.1, `core_algos.kl_penalty`, summed over the tokens of these waves."""
    assert kl_terms(*waves(), estimator).sum().item() == pytest.approx(verl, rel=1e-12)  # pyright: ignore[reportArgumentType] -- a parameter is a str


def exact_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_expected_values_and_gradients_are_what_the_docstring_says(estimator: str) -> None:
    """All tokens of one state, each weighed with its chance of being drawn."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    policy = logits.softmax(0)
    reference = torch.tensor([0.1, -0.2, 0.9, -1.5], dtype=torch.float64).softmax(0)
    terms = kl_terms(policy.log(), reference.log(), estimator)  # pyright: ignore[reportArgumentType] -- a parameter is a str
    drawn = policy.detach()

    value = (drawn * terms).sum().item()
    (gradient,) = torch.autograd.grad((drawn * terms).sum(), [logits], retain_graph=True)

    reverse, forward = exact_kl(policy, reference), exact_kl(reference, policy)
    (of_reverse,) = torch.autograd.grad(reverse, [logits], retain_graph=True)
    (of_forward,) = torch.autograd.grad(forward, [logits])
    if estimator == "k2":
        assert value != pytest.approx(reverse.item(), rel=1e-3)
    else:
        assert value == pytest.approx(reverse.item(), rel=1e-12)
    expected = {"k1": torch.zeros(4, dtype=torch.float64), "k2": of_reverse, "k3": of_forward}[estimator]
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)
    assert not torch.allclose(of_reverse, of_forward, rtol=0.05)


def test_extreme_ratios_leave_k3_finite() -> None:
    own = torch.tensor([-500.0, 0.0], requires_grad=True)
    terms = kl_terms(own, torch.tensor([0.0, -500.0]), "k3")
    (gradient,) = torch.autograd.grad(terms.sum(), [own])
    assert bool(terms.isfinite().all() and gradient.isfinite().all())


def test_the_penalty_in_the_reward_is_a_return_to_go_over_the_rollout() -> None:
    trained = synthetic_rollouts(2, 64, shape=RolloutShape(calls=(2, 3)))
    policy = [behaviour(item.transition) for item in trained]
    reference = [own - 0.5 for own in policy]  # k1 is 0.5 for every token

    penalties = reward_penalties(trained, policy, reference, coefficient=0.1)

    for turn, expected in enumerate([[0.25, 0.2], [0.15, 0.1, 0.05]]):
        for rollout in (0, 1):
            assert penalties[2 * rollout + turn].tolist() == pytest.approx([-value for value in expected])


def test_the_penalty_gives_the_gradient_of_the_kl_of_whole_rollouts() -> None:
    """Two-token rollouts over three tokens, all enumerated: the second token's distribution depends on the first."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(4, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    template: WeightedTransition = synthetic_rollouts(1, 64, shape=RolloutShape(calls=(2,)))[0]
    surrogate = torch.zeros((), dtype=torch.float64)
    kl = torch.zeros((), dtype=torch.float64)
    for first in range(3):
        for second in range(3):
            own = torch.stack([policy[3, first], policy[first, second]])
            ref = torch.stack([reference[3, first], reference[first, second]])
            chance = own.sum().exp()
            kl = kl + chance * (own - ref).sum()
            (adjustment,) = reward_penalties([template], [own.detach().numpy()], [ref.numpy()], 0.7)
            surrogate = surrogate - chance.detach() * (torch.as_tensor(adjustment) * own).sum()

    (found,) = torch.autograd.grad(surrogate, [logits], retain_graph=True)
    (expected,) = torch.autograd.grad(0.7 * kl, [logits])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)
