"""A folder that VERL wrote of a model with adapters becomes the plain model that PEFT would merge."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model

from leyden.core.errors import PolicyError
from leyden.core.policy.checkpoints.adapted_folder import merge_folder, merged_weights
from leyden.core.policy.model import PolicyModel
from leyden.core.testing.policies import tiny_policy

FILES: Any = safetensors.torch
RANK, ALPHA = 4, 12


@pytest.fixture
def adapted() -> Any:
    """A model with adapters that change it, made by PEFT as VERL makes it."""
    module: Any = tiny_policy().module
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    wrapped: Any = get_peft_model(module, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return wrapped


def test_the_folder_is_the_model_that_peft_merges(adapted: Any, tmp_path: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    folder = tmp_path / "huggingface"
    adapted.get_base_model().config.save_pretrained(folder)
    half = len(weights) // 2
    for number, part in enumerate((list(weights)[:half], list(weights)[half:]), 1):
        FILES.save_file({name: weights[name] for name in part}, folder / f"model-0000{number}-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PolicyError, match=r"lacks \d+ of the model's weights"):
        PolicyModel.load(folder)

    for _ in range(2):  # the second time is that of a run that ended in between
        assert merge_folder(folder, tmp_path / "plain", ALPHA / RANK) == tmp_path / "plain"
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["config.json", "model.safetensors"]
    expected = {name: tensor.clone() for name, tensor in adapted.merge_and_unload().state_dict().items()}
    loaded = PolicyModel.load(tmp_path / "plain").module.state_dict()
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=1e-6, atol=1e-7)


def test_weights_without_adapters_stay_as_they_are() -> None:
    weights = {"model.embed.weight": torch.ones(2, 2)}
    assert merged_weights(weights, 2.0) == weights


def test_adapters_of_other_layers_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"and there is model\.embed\.lora_embedding_A\.default"):
        merged_weights({"base_model.model.model.embed.lora_embedding_A.default": torch.ones(1)}, 1.0)
