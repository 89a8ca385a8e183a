"""Adapted folders: Hugging Face folders with PEFT's names, where each adapted layer has its adapter beside it.

VERL writes such a folder for a model that it trains with LoRA. `merge_folder` writes the plain model of it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from leyden.core.errors import PolicyError

_PREFIX, _BASE, _A, _B = "base_model.model.", ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_FILES: Any = safetensors.torch  # its own types name no types of its arguments


def merge_folder(folder: Path, to: Path, scale: float) -> Path:
    """Write the model in `folder`, with its adapters times `scale` added, as the plain folder `to`; return `to`.

    Raises PolicyError if `folder` has adapters that are not those of linear layers.
    """
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= _FILES.load_file(file)
    merged = merged_weights(weights, scale)
    unfinished = to.with_name(f"{to.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copy(file, unfinished)
    _FILES.save_file(merged, unfinished / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(to, ignore_errors=True)
    return unfinished.rename(to)


def merged_weights(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights by the model's own names, with `scale * B @ A` added (LoRA, arXiv 2106.09685, equation 3)."""
    merged = {_own_name(name): tensor for name, tensor in weights.items() if not name.endswith((_A, _B))}
    for name in (name.removesuffix(_A) for name in weights if name.endswith(_A)):
        plain = merged[own := _own_name(f"{name}.weight")]
        delta = weights[f"{name}{_B}"].float() @ weights[f"{name}{_A}"].float()
        merged[own] = torch.add(plain.float(), delta, alpha=scale).to(plain.dtype)
    if left := sorted(name for name in merged if ".lora_" in name):
        raise PolicyError(f"only adapters of linear layers can be merged, and there is {left[0]}")
    return merged


def _own_name(name: str) -> str:
    return name.removeprefix(_PREFIX).replace(_BASE, ".")
