import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from leyden.core.data.encoding.tokens import log_probs, token_ids
from leyden.core.data.transition import Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.policy.device import is_out_of_memory
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy

CONFIG = UpdateConfig(learning_rate=1e-3)
FLOAT32_EPS = torch.finfo(torch.float32).eps


def on_policy(model: PolicyModel, count: int = 6, seed: int = 0) -> list[WeightedTransition]:
    """Rollouts whose behaviour log-probabilities are the model's own."""
    trained: list[WeightedTransition] = []
    for item in synthetic_rollouts(count, 64, seed, single_call_share=0.3):
        t = item.transition
        own = score(model, [*t.prompt_ids, *t.response_ids])[len(t.prompt_ids) - 1 :]
        trained.append(changed(item, logprobs=log_probs(own), temperature=1.0))
    return trained


def changed(item: WeightedTransition, advantage: float | None = None, **fields: Any) -> WeightedTransition:
    values = {name: getattr(item.transition, name) for name in Transition.__dataclass_fields__}
    transition = Transition(**(values | fields))
    return WeightedTransition(transition=transition, advantage=item.advantage if advantage is None else advantage)


def weights(model: PolicyModel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def gradient_rounding(gradient: Tensor, tokens: int) -> float:
    """How far two float32 computations of a gradient may be apart, which is a sum over `tokens` positions.

    Sums of so many products differ by up to a rounding for each, by their order; threads and kernels choose the order.
    """
    return tokens * FLOAT32_EPS * gradient.abs().max().item()


def adam_direction(gradient: Tensor) -> Tensor:
    return gradient / (gradient.abs() + 1e-8)


def test_the_first_update_of_replayed_tokens_has_ratios_of_one() -> None:
    model = tiny_policy()
    trained = on_policy(model)

    report = Updater(model, CONFIG).step(trained)

    assert report.importance_ratio_deviation < 1e-4
    assert report.diagnostics.clip_fraction == 0.0
    assert report.grad_norm > 0
    assert report.tokens == sum(len(item.transition.response_ids) for item in trained)
    assert report.transitions == len(trained)
    assert report.rollouts == report.sequences == 6
    assert (report.optimizer_steps, report.skipped) == (1, {})


def test_one_step_is_adamw_on_the_plain_gradient() -> None:
    model, reference = tiny_policy(), tiny_policy()
    trained = on_policy(model)
    adamw: Any = torch.optim.AdamW
    optimizer = adamw(reference.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    tokens = sum(len(item.transition.response_ids) for item in trained)
    for item in trained:
        t = item.transition
        ids = torch.tensor([[*t.prompt_ids, *t.response_ids]])
        logits_TV = reference.module(input_ids=ids).logits[0, len(t.prompt_ids) - 1 : -1]
        logprobs_T = logits_TV.log_softmax(-1).gather(1, torch.tensor([list(t.response_ids)]).T)[:, 0]
        # On policy the ratio is 1, so the gradient is that of the advantage times the log-probability.
        torch.autograd.backward(-(item.advantage * logprobs_T).sum() / tokens)
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()

    updater = Updater(model, replace(CONFIG, weight_decay=0.01, max_grad_norm=0.5))
    report = updater.step(trained)

    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        gradient, rounding = theirs.grad, gradient_rounding(theirs.grad, report.tokens_read)
        # AdamW's first moment is (1 - β₁) · g after one step. It shows the size of g, of which the step keeps the sign.
        first_moment: Tensor = updater.optimizer.state[ours]["exp_avg"]
        assert ((first_moment / (1 - 0.9) - gradient).abs() <= rounding).all()
        # The step itself is lr · g / (|g| + 1e-8), which grows with g: it lies between those of g ± the rounding.
        apart = 1e-3 * (adam_direction(gradient + rounding) - adam_direction(gradient - rounding))
        bound = apart + 4 * FLOAT32_EPS * (theirs.abs() + 1e-3)
        assert ((ours - theirs).abs() <= bound).all()
        assert (bound < 1e-5).float().mean() > 0.5, "the bound says something of most weights"
    assert not same(weights(model), weights(tiny_policy()))


def test_rewarded_tokens_become_likelier_and_punished_ones_less_likely() -> None:
    model = tiny_policy()
    first, second = on_policy(model, count=2, seed=3)[0::2][:2]
    trained = [changed(first, advantage=1.0), changed(second, advantage=-1.0)]

    def likelihood(item: WeightedTransition) -> float:
        t = item.transition
        return sum(score(model, [*t.prompt_ids, *t.response_ids])[len(t.prompt_ids) - 1 :])

    before = [likelihood(item) for item in trained]
    Updater(model, CONFIG).step(trained)
    after = [likelihood(item) for item in trained]

    assert after[0] > before[0]
    assert after[1] < before[1]


def test_epochs_and_minibatches_deal_out_every_rollout_each_epoch() -> None:
    model = tiny_policy()
    trained = on_policy(model, count=7)

    report = Updater(model, replace(CONFIG, epochs=2, minibatches=3)).step(trained)

    assert report.optimizer_steps == 6
    assert report.diagnostics.tokens == 2 * report.tokens
    assert report.sequences == 7
    assert report.importance_ratio_deviation < 1e-4 < report.diagnostics.ratios.deviation


def test_more_minibatches_than_rollouts_are_one_each() -> None:
    model = tiny_policy()

    assert Updater(model, replace(CONFIG, minibatches=9)).step(on_policy(model, count=2)).optimizer_steps == 2


def test_nothing_to_train_on_is_an_error() -> None:
    model = tiny_policy()
    (item, *_) = on_policy(model, count=1)
    empty = changed(item, response_ids=token_ids([]), logprobs=log_probs([]))
    updater = Updater(model, CONFIG)

    with pytest.raises(TrainingError, match="0 given"):
        updater.step([])
    with pytest.raises(TrainingError, match=r"1 given, skipped \{'empty response': 1\}"):
        updater.step([empty])


def test_transitions_that_cannot_be_trained_are_skipped_and_counted() -> None:
    model = tiny_policy()
    good, *_ = on_policy(model, count=1)
    t = good.transition
    bad = {
        "empty prompt": changed(good, prompt_ids=token_ids([])),
        "empty response": changed(good, response_ids=token_ids([]), logprobs=log_probs([])),
        "log-probabilities do not match the response": changed(good, logprobs=t.logprobs[1:]),
        "greedy sampling": changed(good, temperature=0.0),
        "longer than the model's context": changed(good, prompt_ids=token_ids([1] * 510)),
    }

    report = Updater(model, CONFIG).step([good, *bad.values()])

    assert report.skipped == dict.fromkeys(bad, 1)
    assert report.transitions == 1


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(advantage: float) -> None:
    model = tiny_policy()
    trained = on_policy(model)
    updater = Updater(model, CONFIG)
    updater.step(trained)
    before = weights(model)

    with pytest.raises(TrainingError, match="must be finite"):
        updater.step([*trained[1:], changed(trained[0], advantage=advantage)])

    assert same(before, weights(model))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone() -> None:
    model = tiny_policy()
    trained = on_policy(model)
    updater = Updater(model, CONFIG)
    first: Any = next(model.parameters())

    def poison(gradient: Tensor) -> Tensor:
        return gradient * math.nan

    first.register_hook(poison)
    before = weights(model)

    with pytest.raises(TrainingError, match="gradient norm nan"):
        updater.step(trained)

    assert same(before, weights(model))


def test_metrics_are_flat_finite_numbers() -> None:
    model = tiny_policy()

    config = replace(CONFIG, correction="masked", kl_loss=0.1, kl_reward=0.1, entropy_bonus=0.1, loss="gspo")

    metrics = Updater(model, config).step(on_policy(model)).metrics()

    assert {type(value) for value in metrics.values()} == {int, float}
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["entropy"] > 0
    assert metrics["optimizer_steps"] == 1


def test_the_learning_rate_follows_the_schedule_step_by_step() -> None:
    model = tiny_policy()
    updater = Updater(model, replace(CONFIG, schedule="linear", warmup_steps=1, steps=3, minibatches=2))
    rates = [updater.step(on_policy(model)).learning_rate for _ in range(3)]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4])


def test_a_step_that_failed_is_not_counted_by_the_schedule() -> None:
    model = tiny_policy()
    updater = Updater(model, replace(CONFIG, schedule="linear", steps=2))
    trained = on_policy(model)
    with pytest.raises(TrainingError):
        updater.step([changed(trained[0], advantage=math.nan), *trained[1:]])
    assert updater.step(trained).learning_rate == 1e-3


@pytest.mark.parametrize("values", [{"kl_loss": 0.5}, {"kl_loss": 0.5, "kl_estimator": "k3"}, {"kl_reward": 0.2}])
def test_kl_keeps_the_policy_near_where_it_began(values: dict[str, Any]) -> None:
    held = distance(Updater(tiny_policy(), replace(CONFIG, **values)))

    assert 0 < held < 0.8 * distance_without()


def distance(updater: Updater) -> float:
    def replayed(model: PolicyModel, trained: Sequence[WeightedTransition]) -> list[WeightedTransition]:
        own = [score(model, [*i.transition.prompt_ids, *i.transition.response_ids]) for i in trained]
        found = zip(trained, own, strict=True)
        return [changed(i, logprobs=log_probs(values[len(i.transition.prompt_ids) - 1 :])) for i, values in found]

    trained = on_policy(updater.model, count=4)
    for _ in range(7):
        updater.step(replayed(updater.model, trained))
    return updater.step(replayed(updater.model, trained)).metrics()["reference_kl"]


@cache
def distance_without() -> float:
    return distance(Updater(tiny_policy(), replace(CONFIG, kl_loss=1e-12)))


def test_the_reference_is_frozen_and_kept_only_for_kl() -> None:
    model = tiny_policy()
    assert Updater(model, CONFIG).reference is None
    updater = Updater(model, replace(CONFIG, kl_loss=0.1))
    updater.step(on_policy(model))
    assert updater.reference is not None
    assert same(weights(updater.reference), weights(tiny_policy()))
    assert not any(parameter.requires_grad for parameter in updater.reference.parameters())
    assert not same(weights(updater.reference), weights(model))


def test_on_policy_diagnostics_say_so() -> None:
    model = tiny_policy()
    metrics = Updater(model, replace(CONFIG, correction="truncated")).step(on_policy(model)).metrics()
    assert metrics["mismatch_ratio_p50"] == 1.0
    assert metrics["mismatch_ratio_effective_share"] == pytest.approx(1.0)
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["corrected_fraction"] == 0.0


def test_stale_tokens_show_in_the_mismatch() -> None:
    model = tiny_policy()
    stale = [changed(i, logprobs=log_probs(v - 1.0 for v in i.transition.logprobs)) for i in on_policy(model)]
    metrics = Updater(model, replace(CONFIG, correction="truncated")).step(stale).metrics()
    assert metrics["mismatch_ratio_p50"] == pytest.approx(math.e, rel=0.006)
    assert metrics["corrected_fraction"] == 1.0


def test_a_step_whose_tokens_are_all_masked_moves_nothing() -> None:
    model = tiny_policy()
    updater = Updater(model, replace(CONFIG, correction="masked", weight_decay=0.1, epochs=2, minibatches=2))
    trained = on_policy(model)
    assert updater.step(trained).metrics()["optimizer_steps_masked"] == 0
    before = weights(model)
    moments = [value.clone() for state in updater.optimizer.state.values() for value in state.values()]

    far = [changed(i, logprobs=log_probs(v - 5.0 for v in i.transition.logprobs)) for i in on_policy(model)]
    metrics = updater.step(far).metrics()

    assert (metrics["optimizer_steps"], metrics["optimizer_steps_masked"]) == (0, 4)
    assert metrics["corrected_fraction"] == 1.0
    assert same(before, weights(model))
    assert same(moments, [value for state in updater.optimizer.state.values() for value in state.values()])


def test_a_minibatch_with_one_token_left_is_learned_from() -> None:
    model = tiny_policy()
    updater = Updater(model, replace(CONFIG, correction="masked"))
    first, *others = on_policy(model)
    far = [changed(i, logprobs=log_probs(v - 5.0 for v in i.transition.logprobs)) for i in others]
    before = weights(model)
    metrics = updater.step([first, *far]).metrics()
    assert (metrics["optimizer_steps"], metrics["optimizer_steps_masked"]) == (1, 0)
    assert not same(before, weights(model))


OUT_OF_MEMORY = [
    (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total of 79"),
        "3.50 GiB could",
    ),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes. Error 12"),
        "8000 bytes",
    ),
]


@pytest.mark.parametrize(("error", "text"), OUT_OF_MEMORY, ids=["gpu", "cpu"])
def test_an_update_that_does_not_fit_into_memory_ends_in_one_line(
    error: RuntimeError, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_policy()
    updater = Updater(model, replace(CONFIG, precision="bfloat16"))
    before = weights(model)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(model.module, "forward", fail)
    with pytest.raises(TrainingError, match="ran out of memory in an update") as failure:
        updater.step(synthetic_rollouts(3, 64))
    assert text in str(failure.value)
    assert "lower token_budget, or train adapters" in str(failure.value)
    assert "bfloat16" not in str(failure.value)
    monkeypatch.undo()
    assert same(before, weights(model))
    assert updater.step(synthetic_rollouts(3, 64)).optimizer_steps == 1


def test_an_allocation_that_the_cpu_refuses_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as failure:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(failure.value)


def test_other_errors_of_an_update_are_raised_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    updater = Updater(tiny_policy(), CONFIG)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(updater.model.module, "forward", fail)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        updater.step(synthetic_rollouts(3, 64))


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 0},
        {"minibatches": 0},
        {"token_budget": 0},
        {"max_grad_norm": 0.0},
        {"learning_rate": -1.0},
        {"learning_rate": math.nan},
        {"weight_decay": -0.1},
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        replace(CONFIG, **values)
