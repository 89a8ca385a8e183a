"""Adapters: what trains, what is served, what is compared with, what is kept; held against W + alpha / rank × B A."""

import asyncio
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers
from msgspec.structs import replace
from torch import Tensor

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.errors import PolicyError, UsageError
from leyden.core.policy.checkpoints.checkpoint import load_checkpoint, load_trained, save_checkpoint
from leyden.core.policy.checkpoints.export import adapter_folder, export_policy
from leyden.core.policy.checkpoints.state import MODEL
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig, UpdateOptions
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_models import tiny_model

FILES: Any = safetensors.torch
LIBRARY: Any = transformers
PEFT: Any = peft
IDS = [5, 1, 40, 7, 7, 23, 60, 2]
LORA = LoraOptions(rank=3, alpha=5.0)
CONFIG = UpdateConfig(learning_rate=1e-2, lora=LORA, seed=3)
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def trained(steps: int = 2, **changes: Any) -> Updater:
    updater = Updater(tiny_policy(), replace(CONFIG, **changes))
    for step in range(steps):
        updater.step(synthetic_rollouts(4, 64, seed=step))
    return updater


def by_hand(model: PolicyModel) -> dict[str, Tensor]:
    """The weights of `tiny_policy` with the adapters of `model` added by the formula."""
    plain, own = tiny_policy().weights(), model.trained_weights()
    for name, down in own.items():
        if ".lora_A." in name:
            up, weight = own[name.replace("lora_A", "lora_B")], f"{name.partition('.lora_A.')[0]}.weight"
            plain[weight] = plain[weight] + 5.0 / 3 * up.matmul(down)
    return plain


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.allclose(found[n], expected[n], atol=1e-6) for n in expected)


def test_the_adapters_of_every_linear_layer_train_and_nothing_else() -> None:
    before = tiny_policy().weights()
    updater = trained()

    own = updater.model.trained_weights()
    adapted = {name.partition(".lora_")[0].rpartition(".")[2] for name in own}
    assert adapted == set(LAYERS)
    assert len(own) == 2 * len(LAYERS) * 2
    assert all(tensor.abs().max() > 0 for tensor in own.values())
    assert {p.data_ptr() for p in updater.model.parameters()} == {tensor.data_ptr() for tensor in own.values()}
    assert sum(p.requires_grad for p in updater.model.module.parameters()) == len(own)
    plain = updater.model.frozen_copy().weights()
    assert plain.keys() == before.keys()
    assert all(torch.equal(plain[name], before[name]) for name in before)


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_served_is_the_formula_under_the_plain_names(tied: bool) -> None:
    updater = Updater(tiny_policy(shape=TinyShape(tied=tied)), CONFIG)
    updater.step(synthetic_rollouts(4, 64))
    model, other = updater.model, tiny_policy(shape=TinyShape(tied=tied))
    inside = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}

    served = model.weights()

    if tied:
        assert close(served, by_hand(model))
    assert served.keys() == other.weights().keys()
    other.load_weights(served)
    assert score(other, IDS) == pytest.approx(score(model, IDS), abs=1e-5)
    assert score(model, IDS) != pytest.approx(score(tiny_policy(shape=TinyShape(tied=tied)), IDS), abs=1e-3)
    assert all(torch.equal(tensor, inside[name]) for name, tensor in model.module.state_dict().items())


def test_an_engine_serves_what_is_trained_after_every_update() -> None:
    async def gaps() -> list[float]:
        updater = trained(steps=0)
        engine = EmbeddedEngine(tiny_policy().module, name="tiny")
        await engine.start()
        found: list[float] = []
        try:
            for version in range(1, 4):
                updater.step(synthetic_rollouts(4, 64, seed=version))
                await engine.update_weights(updater.model.weights(), version)
                served, own = await engine.score(IDS), score(updater.model, IDS)
                found.append(max(abs(a - b) for a, b in zip(served, own, strict=True)))
        finally:
            await engine.close()
        return found

    assert max(asyncio.run(gaps())) < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_other_families_are_adapted_too(family: str) -> None:
    """gpt2 keeps its weights transposed; llama's layers have biases here."""
    updater = Updater(PolicyModel(tiny_model(family), family), CONFIG)
    updater.step(synthetic_rollouts(3, 61))
    plain = PolicyModel(tiny_model(family), family)

    plain.load_weights(updater.model.weights())

    assert score(plain, IDS) == pytest.approx(score(updater.model, IDS), abs=1e-5)
    assert score(plain, IDS) != pytest.approx(score(PolicyModel(tiny_model(family), family), IDS), abs=1e-4)


def test_the_reference_is_the_same_weights_without_adapters() -> None:
    updater = trained(kl_loss=0.1)

    assert updater.reference is not None
    assert updater.reference.module is updater.model.module
    assert score(updater.reference, IDS) == score(tiny_policy(), IDS)
    assert score(updater.model, IDS) != score(updater.reference, IDS)
    assert all(parameter.requires_grad for parameter in updater.model.parameters())
    assert updater.step(synthetic_rollouts(4, 64)).metrics()["reference_kl"] > 0


def test_before_the_first_update_adapters_change_nothing_and_follow_the_seed() -> None:
    before = torch.get_rng_state()
    first, again, other = (PolicyModel(tiny_policy().module, "tiny") for _ in range(3))
    first.adapt(LORA, seed=1)
    again.adapt(LORA, seed=1)
    other.adapt(LORA, seed=2)

    assert score(first, IDS) == score(tiny_policy(), IDS)
    one, same, another = (list(model.trained_weights().values()) for model in (first, again, other))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, another, strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_a_checkpoint_keeps_the_adapters_alone_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = {"epochs": 2, "minibatches": 2, "kl_loss": 0.1}
    straight, first, second = trained(4, **config), trained(2, **config), trained(0, **config)

    path = save_checkpoint(tmp_path, 2, first, {})
    load_checkpoint(path, second)
    for step in (2, 3):
        second.step(synthetic_rollouts(4, 64, seed=step))

    expected, found = straight.model.trained_weights(), second.model.trained_weights()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    kept = FILES.load_file(path / MODEL)
    assert kept.keys() == expected.keys()
    assert sum(tensor.numel() for tensor in kept.values()) == sum(p.numel() for p in first.model.parameters())
    plain = tiny_policy()
    load_trained(path, plain)
    assert score(plain, IDS) == score(first.model, IDS) != score(tiny_policy(), IDS)
    with pytest.raises(PolicyError, match="already has adapters"):
        load_trained(path, trained(0, lora=LoraOptions(rank=3)).model)
    with pytest.raises(PolicyError, match="names or shapes differ"):
        load_checkpoint(path, trained(0, lora=LoraOptions(rank=2)))
    with pytest.raises(PolicyError, match="names or shapes differ"):
        load_checkpoint(path, trained(0, lora=None))


def test_an_export_is_a_plain_folder_and_the_adapters_beside_it(tmp_path: Path) -> None:
    base: Any = tiny_policy().module
    base.save_pretrained(tmp_path / "base")
    updater = Updater(PolicyModel.load(tmp_path / "base"), CONFIG)
    updater.step(synthetic_rollouts(4, 64))

    target = export_policy(updater.model, tmp_path / "base", tmp_path / "runs" / "policy")

    ids = torch.tensor([IDS])
    expected = updater.model.module(input_ids=ids).logits
    merged = PolicyModel.load(target)
    assert not [name for name in merged.module.state_dict() if "lora" in name or "base_layer" in name]
    assert torch.allclose(merged.module(input_ids=ids).logits, expected, atol=1e-4)
    adapters = adapter_folder(target)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in adapters.iterdir()}
    assert json.loads((adapters / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "base"
    )
    again = PEFT.PeftModel.from_pretrained(LIBRARY.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), adapters)
    assert torch.allclose(again.eval()(input_ids=ids).logits, expected, atol=1e-5)
    assert sorted(path.name for path in target.parent.iterdir()) == ["policy", "policy-adapter"]


def test_chosen_layers_by_name_or_end_of_name() -> None:
    model = tiny_policy()
    model.adapt(LoraOptions(target_modules=("self_attn.q_proj", "down_proj")))
    assert {n.partition(".lora_")[0].rpartition(".")[2] for n in model.trained_weights()} == {"q_proj", "down_proj"}


@pytest.mark.parametrize("target", ["k_porj", "proj", "lm_head", "embed_tokens", "norm"])
def test_a_target_that_is_no_linear_layer_of_the_blocks_is_refused(target: str) -> None:
    model = tiny_policy()
    with pytest.raises(
        UsageError, match=(f"tiny-qwen3-0 has no linear layer '{target}' in its blocks; it has down_proj, ")
    ):
        model.adapt(LoraOptions(target_modules=("q_proj", target)))
    assert model.adapters is None


def test_adapters_are_not_put_on_others() -> None:
    model = tiny_policy()
    model.adapt(LORA)
    model.adapt(LORA)
    with pytest.raises(PolicyError, match="already has adapters"):
        model.adapt(LoraOptions(rank=2))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rank": 0}, "lora.rank must be at least 1"),
        ({"alpha": 0.0}, "lora.alpha must be above 0"),
        ({"dropout": 0.1}, "lora.dropout is 0.1, and must be 0: with dropout, the trained policy would differ"),
        ({"target_modules": ()}, "is empty"),
        ({"target_modules": ("q_proj", "")}, "leave it out for all"),
    ],
)
def test_options_that_cannot_work_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LoraOptions(**values)


def test_alpha_is_twice_the_rank_unless_it_is_given() -> None:
    assert (LoraOptions(rank=4).scale, LoraOptions(rank=4, alpha=3.0).scale) == (8.0, 3.0)


def test_a_command_line_reaches_the_options_and_a_run_keeps_them() -> None:
    given = make_algorithm("lightning_rl", {"lora.rank": 8, "lora.target_modules": ["q_proj"], "precision": "bfloat16"})
    again = make_algorithm("lightning_rl", given.settings())

    assert isinstance(again.config, UpdateOptions)
    assert again.config.lora == LoraOptions(rank=8, target_modules=("q_proj",))
    assert again.config.precision == "bfloat16"
    assert make_algorithm("lightning_rl", {"lora": {}}).settings()["lora"]["rank"] == 16
    assert make_algorithm("lightning_rl", {}).settings()["lora"] is None
    with pytest.raises(UsageError, match="unknown field `ranks`"):
        make_algorithm("lightning_rl", {"lora.ranks": 8})
    with pytest.raises(UsageError, match="invalid enum value 'half'"):
        make_algorithm("lightning_rl", {"precision": "half"})


def test_bfloat16_reaches_the_forward_pass_from_the_options() -> None:
    exact, rounded = trained(0), trained(0, precision="bfloat16")
    full = Updater(tiny_policy(), UpdateConfig(precision="bfloat16")).model

    assert (full.precision, rounded.model.precision, exact.model.precision) == ("bfloat16", "bfloat16", "float32")
    assert full.dtype == rounded.model.dtype == torch.float32
    assert score(rounded.model, IDS) != score(exact.model, IDS)
    assert score(rounded.model, IDS) == pytest.approx(score(exact.model, IDS), abs=0.15)
    rounded.step(synthetic_rollouts(4, 64))
    assert {tensor.dtype for tensor in rounded.model.trained_weights().values()} == {torch.float32}
