"""Updates on a GPU, against the same updates on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leyden.core.data.encoding.tokens import log_probs
from leyden.core.errors import TrainingError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from leyden.core.policy.logprobs import score
from leyden.core.policy.losses.registry import LOSSES
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.repeatable import repeatable
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy, with_adapters
from leyden.core.testing.tiny_models import tiny_model

SHAPE = RolloutShape(system=40, question=6, calls=(9, 5), observation=7)
WAYS = {"separate": (False, False), "merged": (True, False), "shared": (True, True)}


def on_gpu(model: PolicyModel) -> PolicyModel:
    model.module.cuda()
    return model


def rollouts(seed: int = 0) -> list[WeightedTransition]:
    return synthetic_rollouts(12, 61, seed, shape=SHAPE, single_call_share=0.3, group_size=4)


def updated(model: PolicyModel, trained: list[WeightedTransition], **options: Any) -> tuple[Tensor, Any]:
    """The gradient and the report of one update of `model`, whose weights do not move."""
    updater = Updater(model, UpdateConfig(learning_rate=0.0, max_grad_norm=1e9, **options))
    report = updater.step(trained)
    found = [p.grad.float().cpu().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found), report


def far(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).pow(2).sum().sqrt() / expected.pow(2).sum().sqrt())


def sampled_by(model: PolicyModel, trained: list[WeightedTransition]) -> list[WeightedTransition]:
    """Return `trained` as if `model` itself had sampled it at temperature 1."""
    found: list[WeightedTransition] = []
    for item in trained:
        t = item.transition
        own = log_probs(score(model, [*t.prompt_ids, *t.response_ids])[len(t.prompt_ids) - 1 :])
        found.append(replace(item, transition=replace(t, logprobs=own, temperature=1.0)))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loss", sorted(name for name in LOSSES.names() if LOSSES.make(name).together == 1))
def test_every_loss_has_the_gradient_of_the_cpu(loss: str, way: str) -> None:
    merge, share = WAYS[way]
    options: dict[str, Any] = {"loss": loss, "merge": merge, "share_prefix": share}
    expected, on_cpu = updated(tiny_policy(), rollouts(), **options)
    found, report = updated(on_gpu(tiny_policy()), rollouts(), **options)
    assert far(found, expected) < 1e-4
    assert report.loss == pytest.approx(on_cpu.loss, rel=1e-4, abs=1e-6)
    assert report.tokens_read == on_cpu.tokens_read


@pytest.mark.parametrize("correction", [None, "recomputed", "truncated", "masked"])
def test_corrections_kl_and_entropy_are_those_of_the_cpu(correction: str | None) -> None:
    options: dict[str, Any] = {"correction": correction, "kl_loss": 0.1, "kl_reward": 0.1, "entropy_bonus": 0.01}
    expected, on_cpu = updated(tiny_policy(), rollouts(), **options)
    found, report = updated(on_gpu(tiny_policy()), rollouts(), **options)
    assert far(found, expected) < 1e-4
    assert report.metrics() == pytest.approx(on_cpu.metrics(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_adapters_are_trained_as_on_the_cpu(way: str) -> None:
    merge, share = WAYS[way]
    lora = LoraOptions(rank=4)
    options: dict[str, Any] = {"merge": merge, "share_prefix": share, "lora": lora}
    expected, _ = updated(with_adapters(tiny_policy(), lora), rollouts(), **options)
    found, _ = updated(with_adapters(on_gpu(tiny_policy()), lora), rollouts(), **options)
    assert far(found, expected) < 1e-4


@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral", "gemma2", "gemma3", "gpt2"])
def test_other_families_are_trained_as_on_the_cpu(family: str) -> None:
    expected, _ = updated(PolicyModel(tiny_model(family), family), rollouts())
    found, _ = updated(on_gpu(PolicyModel(tiny_model(family), family)), rollouts())
    assert far(found, expected) < 1e-4


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_is_near_to_float32(way: str) -> None:
    merge, share = WAYS[way]
    shape = TinyShape(hidden=64, intermediate=128, heads=4, head_dim=16)
    exact, _ = updated(tiny_policy(shape=shape), rollouts(), loss="reinforce")
    options: dict[str, Any] = {"loss": "reinforce", "merge": merge, "share_prefix": share}
    found, _ = updated(on_gpu(tiny_policy(shape=shape)), rollouts(), precision="bfloat16", **options)
    assert far(found, exact) < 0.1


def test_a_policy_of_the_gpu_reads_its_own_tokens_with_a_ratio_of_one() -> None:
    model = on_gpu(tiny_policy())
    _, report = updated(model, sampled_by(model, rollouts()), correction="recomputed")
    assert report.importance_ratio_deviation < 1e-3


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = UpdateConfig(learning_rate=1e-3, epochs=2, minibatches=2, seed=5)
    straight, first, second = (Updater(on_gpu(tiny_policy(seed)), config) for seed in (0, 0, 9))
    with repeatable(True):
        for step in range(4):
            straight.step(rollouts(step))
        for step in range(2):
            first.step(rollouts(step))
        path = save_checkpoint(tmp_path, 2, first, {"step": 2})
        load_checkpoint(path, second)
        for step in range(2, 4):
            second.step(rollouts(step))
    for expected, found in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert found.is_cuda
        assert torch.equal(expected, found)


def test_a_checkpoint_of_the_gpu_goes_on_without_one(tmp_path: Path) -> None:
    config = UpdateConfig(learning_rate=1e-3)
    first, second = Updater(on_gpu(tiny_policy()), config), Updater(tiny_policy(9), config)
    first.step(rollouts())
    load_checkpoint(save_checkpoint(tmp_path, 1, first, {}), second)
    for expected, found in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(expected.cpu(), found)
    second.step(rollouts(1))


def test_an_update_that_does_not_fit_ends_in_one_line_and_leaves_the_policy_usable() -> None:
    shape = TinyShape(hidden=512, intermediate=2048, layers=8, heads=8, head_dim=64, key_value_heads=8, context=8192)
    updater = Updater(on_gpu(tiny_policy(shape=shape)), UpdateConfig(learning_rate=1e-3, token_budget=1 << 20))
    long = RolloutShape(system=64, question=8, calls=(4000,))
    cuda: Any = torch.cuda
    cuda.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(TrainingError, match="ran out of memory") as failure:
            updater.step(synthetic_rollouts(40, 61, shape=long))
        assert "token_budget" in str(failure.value)
        assert "\n" not in str(failure.value)
        assert updater.step(rollouts()).optimizer_steps == 1
    finally:
        cuda.set_per_process_memory_fraction(1.0)
