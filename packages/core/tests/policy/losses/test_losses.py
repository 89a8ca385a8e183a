"""Every loss against its formula, one token at a time and without torch; and against what VERL computes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leyden.core.policy.losses.base import Loss, LossEntries
from leyden.core.policy.losses.cispo import CISPO
from leyden.core.policy.losses.dpo import DPO
from leyden.core.policy.losses.dual_clip import DualClip
from leyden.core.policy.losses.gspo import GSPO
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.losses.registry import LOSSES
from leyden.core.policy.losses.reinforce import Reinforce
from leyden.core.policy.losses.sft import SFT, Rejection


@dataclass(frozen=True)
class Token:
    transition: int
    logprob: float
    proximal: float
    reference: float
    advantage: float
    weight: float


def entries(tokens: Sequence[Token], logprobs_N: Tensor | None = None) -> LossEntries:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    own_N = column("logprob") if logprobs_N is None else logprobs_N
    return LossEntries(
        transition_N=column("transition").long(),
        logprobs_N=own_N,
        entropy_N=torch.zeros_like(own_N),
        proximal_N=column("proximal"),
        reference_N=column("reference"),
        advantages_N=column("advantage"),
        weights_N=column("weight"),
    )


def loss_of(loss: Loss, tokens: Sequence[Token], logprobs_N: Tensor | None = None) -> Tensor:
    seen = entries(tokens, logprobs_N)
    return (seen.weights_N * loss.of(seen).loss_N).sum()


def ratio(token: Token) -> float:
    return math.exp(min(max(token.logprob - token.proximal, -20.0), 20.0))


def held(value: float, low: float, high: float) -> float:
    return min(max(value, 1 - low), 1 + high)


def of_transition(tokens: Sequence[Token], number: int, value: Callable[[Token], float]) -> list[float]:
    return [value(token) for token in tokens if token.transition == number]


ByHand = Callable[[Sequence[Token], Sequence[Token]], list[float]]
"""(tokens, the same tokens where a ratio is held constant) -> the loss of each, before weights."""


def ppo_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    return [-min(ratio(t) * t.advantage, held(ratio(t), 0.2, 0.3) * t.advantage) for t in tokens]


def dual_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    plain = [min(ratio(t) * t.advantage, held(ratio(t), 0.2, 0.3) * t.advantage) for t in tokens]
    return [-max(p, 1.5 * t.advantage) if t.advantage < 0 else -p for p, t in zip(plain, tokens, strict=True)]


def cispo_by_hand(tokens: Sequence[Token], frozen: Sequence[Token]) -> list[float]:
    return [-held(ratio(f), 0.5, 0.4) * t.advantage * t.logprob for t, f in zip(tokens, frozen, strict=True)]


def gspo_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    found: list[float] = []
    for token in tokens:
        logs = of_transition(tokens, token.transition, lambda t: t.logprob - t.proximal)
        s = math.exp(min(max(sum(logs) / len(logs), -20.0), 20.0))
        found.append(-min(s * token.advantage, held(s, 0.05, 0.1) * token.advantage))
    return found


def reinforce_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    return [-t.advantage * t.logprob for t in tokens]


def rejection_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    return [-t.logprob if t.advantage > 0 else 0.0 for t in tokens]


def sft_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    return [-t.logprob for t in tokens]


def dpo_by_hand(tokens: Sequence[Token], _: Sequence[Token]) -> list[float]:
    found: list[float] = []
    for token in tokens:
        first = token.transition - token.transition % 2
        chosen, rejected = (
            sum(of_transition(tokens, n, lambda t: t.logprob - t.reference)) for n in (first, first + 1)
        )
        found.append(-math.log(1 / (1 + math.exp(-0.1 * (chosen - rejected)))))
    return found


CASES: dict[str, tuple[Loss, ByHand]] = {
    "ppo_clip": (PPOClip(clip_low=0.2, clip_high=0.3), ppo_by_hand),
    "dual_clip": (DualClip(clip_low=0.2, clip_high=0.3, clip_dual=1.5), dual_by_hand),
    "cispo": (CISPO(clip_low=0.5, clip_high=0.4), cispo_by_hand),
    "gspo": (GSPO(clip_low=0.05, clip_high=0.1), gspo_by_hand),
    "reinforce": (Reinforce(), reinforce_by_hand),
    "rejection": (Rejection(), rejection_by_hand),
    "sft": (SFT(), sft_by_hand),
    "dpo": (DPO(beta=0.1), dpo_by_hand),
}
each_loss = pytest.mark.parametrize("name", CASES)
LENGTHS = st.lists(st.integers(1, 4), min_size=2, max_size=6).map(lambda lengths: lengths[: len(lengths) // 2 * 2])


@st.composite
def batches(draw: st.DrawFn) -> list[Token]:
    """Tokens of an even number of transitions."""
    logs, advantages = st.floats(-5, 0), st.floats(-3, 3)
    return [
        Token(number, draw(logs), draw(logs), draw(logs), draw(advantages), draw(st.floats(0.01, 1)))
        for number, length in enumerate(draw(LENGTHS))
        for _ in range(length)
    ]


def test_every_registered_loss_is_checked_here() -> None:
    assert set(LOSSES.names()) == set(CASES)


@each_loss
@given(tokens=batches())
def test_a_loss_is_its_formula(name: str, tokens: list[Token]) -> None:
    loss, by_hand = CASES[name]
    expected = sum(t.weight * value for t, value in zip(tokens, by_hand(tokens, tokens), strict=True))
    assert loss_of(loss, tokens).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@each_loss
@given(tokens=batches(), data=st.data())
def test_losses_of_whole_units_add_up(name: str, tokens: list[Token], data: st.DataObject) -> None:
    loss, _ = CASES[name]
    units = sorted({t.transition // loss.together for t in tokens})
    side = {unit: data.draw(st.booleans()) for unit in units}
    parts = [[t for t in tokens if side[t.transition // loss.together] is which] for which in (True, False)]
    added = sum(loss_of(loss, part).item() for part in parts if part)
    assert added == pytest.approx(loss_of(loss, tokens).item(), rel=1e-12, abs=1e-12)


@each_loss
@given(tokens=batches(), data=st.data())
def test_the_order_of_entries_does_not_matter(name: str, tokens: list[Token], data: st.DataObject) -> None:
    loss, _ = CASES[name]
    mixed = data.draw(st.permutations(tokens))
    assert loss_of(loss, mixed).item() == pytest.approx(loss_of(loss, tokens).item(), rel=1e-12, abs=1e-12)


def wave(transition: int, position: int) -> Token:
    """The same numbers, from no generator, here and wherever another library's figures were taken."""
    own = -1 - math.sin(3 * transition + position)
    return Token(
        transition=transition,
        logprob=own,
        proximal=own + 0.6 * math.cos(5 * transition + 2 * position),
        reference=own + 0.4 * math.sin(7 * transition + position),
        advantage=(1.5, -0.5, -2.0, 1.0)[transition],
        weight=1.0,
    )


RESPONSES = (3, 5, 2, 4)
WAVES = [wave(i, t) for i, length in enumerate(RESPONSES) for t in range(length)]


@each_loss
def test_gradients_equal_finite_differences_of_the_formula(name: str) -> None:
    loss, by_hand = CASES[name]
    logprobs_N = torch.tensor([t.logprob for t in WAVES], dtype=torch.float64, requires_grad=True)
    (found_N,) = torch.autograd.grad(loss_of(loss, WAVES, logprobs_N), [logprobs_N])

    for index, token in enumerate(WAVES):
        at: list[float] = []
        for step in (1e-6, -1e-6):
            moved = [*WAVES]
            moved[index] = replace(token, logprob=token.logprob + step)
            at.append(sum(by_hand(moved, WAVES)))
        assert found_N[index].item() == pytest.approx((at[0] - at[1]) / 2e-6, abs=1e-7)


VERL = {
    ("dual_clip", "token"): (-0.1400202934229639, 0.38579504143352916, 0.03320454089865082, 0.4285714282653061),
    ("gspo", "token"): (-0.18333322138529268, 0.923585392719378, 0.10050125290963181, 0.3571428568877551),
    ("cispo", "token"): (0.4353243660770832, 1.1145554760497376, 0.12640808974882928, 0.28571428551020406),
    ("reinforce", "token"): (0.20007589263625405, 1.0714285714285712, 0.10204081632653061, 0.0),
    ("dual_clip", "rollout"): (0.036213306970909964, 0.3833290143703177, 0.03814486503350989, 0.4285714282653061),
    ("gspo", "rollout"): (-0.0355302408302387, 1.1528465354345565, 0.19151602225206754, 0.3571428568877551),
    ("cispo", "rollout"): (0.32236196382404003, 1.2987318541057902, 0.23085562324403744, 0.28571428551020406),
    ("reinforce", "rollout"): (0.05010005928991598, 1.249999995375, 0.190624998346875, 0.0),
}
"""Loss, Σ |gradient|, Σ gradient² and clip fraction of WAVES by VERL 0.9.1, `core_algos.compute_policy_loss_*`
(vanilla with clip_ratio_c=1.5, gspo, cispo, reinforce) in float64, with token-mean and seq-mean-token-mean.
VERL adds 1e-8 to a length it divides by."""


@pytest.mark.parametrize(("name", "normalisation"), VERL)
def test_losses_equal_verls(name: str, normalisation: str) -> None:
    per_token = {"token": [1 / sum(RESPONSES)] * 4, "rollout": [1 / (4 * length) for length in RESPONSES]}
    tokens = [replace(t, weight=per_token[normalisation][t.transition]) for t in WAVES]
    logprobs_N = torch.tensor([t.logprob for t in tokens], dtype=torch.float64, requires_grad=True)
    loss = CASES[name][0]
    value = loss_of(loss, tokens, logprobs_N)
    (gradient_N,) = torch.autograd.grad(value, [logprobs_N])
    clipped_N = loss.of(entries(tokens)).clipped_N
    if name == "dual_clip":  # VERL counts PPO's clip alone; these tokens lie beyond the other bound.
        clipped_N = PPOClip(clip_low=0.2, clip_high=0.3).of(entries(tokens)).clipped_N

    found = (
        value.item(),
        gradient_N.abs().sum().item(),
        gradient_N.square().sum().item(),
        0.0 if clipped_N is None else clipped_N.double().mean().item(),
    )
    assert found == pytest.approx(VERL[name, normalisation], rel=1e-7)


def test_token_losses_equal_the_formulas_of_trls_grpo_trainer() -> None:
    """TRL 1.16, `GRPOTrainer._compute_loss`: loss types grpo (with its mean over rollouts) and cispo, rewritten."""
    new, old, advantages = (
        torch.tensor([getattr(t, field) for t in WAVES], dtype=torch.float64)
        for field in ("logprob", "proximal", "advantage")
    )
    coef_1 = (new - old).exp()
    coef_2 = coef_1.clamp(1 - 0.2, 1 + 0.3)
    grpo = -torch.min(coef_1 * advantages, coef_2 * advantages)
    cispo = -coef_1.clamp(max=1.4) * advantages * new
    rows = torch.tensor([t.transition for t in WAVES])
    sequence_mean = torch.stack([grpo[rows == row].mean() for row in range(4)]).mean()

    seen = entries(WAVES)
    assert torch.equal(CASES["ppo_clip"][0].of(seen).loss_N, grpo)
    torch.testing.assert_close(CISPO(clip_low=1.0, clip_high=0.4).of(seen).loss_N, cispo, rtol=1e-14, atol=0)
    weights = torch.tensor([1 / (4 * RESPONSES[t.transition]) for t in WAVES], dtype=torch.float64)
    assert (weights * grpo).sum().item() == pytest.approx(sequence_mean.item(), rel=1e-14)


@pytest.mark.parametrize(
    ("name", "size", "advantage", "gradient"),
    [
        ("ppo_clip", 1.0, 2.0, -2.0),
        ("ppo_clip", 1.25, 2.0, -2.5),  # within 1 + 0.3
        ("ppo_clip", 1.5, 2.0, 0.0),  # above, and pushed further up: clipped
        ("ppo_clip", 1.4, -2.0, 2.8),  # above, and pushed back: not clipped
        ("ppo_clip", 0.5, -2.0, 0.0),  # below, and pushed further down: clipped
        ("ppo_clip", 0.5, 2.0, -1.0),  # below, and pushed back: not clipped
        ("dual_clip", 1.4, -2.0, 2.8),  # within the second bound of 1.5
        ("dual_clip", 1.6, -2.0, 0.0),  # beyond it
        ("dual_clip", 1.6, 2.0, 0.0),  # PPO's own clip
        ("cispo", 1.6, -2.0, 2.8),  # held at 1.4, and pushed all the same
        ("cispo", 0.25, 2.0, -1.0),  # held at 0.5
        ("reinforce", 9.0, 2.0, -2.0),
        ("rejection", 9.0, 2.0, -1.0),
        ("rejection", 9.0, -2.0, 0.0),
        ("sft", 9.0, -2.0, -1.0),
    ],
)
def test_the_gradient_of_each_case(name: str, size: float, advantage: float, gradient: float) -> None:
    logprobs_N = torch.tensor([math.log(size)], dtype=torch.float64, requires_grad=True)
    token = Token(0, math.log(size), 0.0, 0.0, advantage, 1.0)
    (found,) = torch.autograd.grad(loss_of(CASES[name][0], [token], logprobs_N), [logprobs_N])
    assert found.item() == pytest.approx(gradient, abs=1e-12)


@each_loss
@pytest.mark.parametrize("far", [-500.0, 500.0])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_extreme_ratios_leave_loss_and_gradient_finite(name: str, far: float, advantage: float) -> None:
    tokens = [Token(n, -1.0, -1.0 + far * (n % 2), -1.0 - far * (n % 2), advantage, 1.0) for n in (0, 0, 1, 1)]
    exact = entries(tokens)
    single = {field: getattr(exact, field).float() for field in LossEntries.__dataclass_fields__}
    logprobs_N = single["logprobs_N"].requires_grad_()
    value = CASES[name][0].of(LossEntries(**single)).loss_N.sum()
    (gradient_N,) = torch.autograd.grad(value, [logprobs_N])
    assert math.isfinite(value.item())
    assert bool(gradient_N.isfinite().all())


def test_gspo_takes_one_ratio_for_a_whole_transition() -> None:
    token_ratios = (4.0, 0.25)
    tokens = [Token(3, math.log(r), 0.0, 0.0, 1.0, 1.0) for r in token_ratios]
    found = GSPO().of(entries(tokens))
    assert found.loss_N.numpy().tolist() == pytest.approx([-1.0, -1.0])
    assert found.clipped_N is not None and not bool(found.clipped_N.any())
    by_token = PPOClip().of(entries(tokens)).clipped_N
    assert by_token is not None and by_token.numpy().tolist() == [True, False]
