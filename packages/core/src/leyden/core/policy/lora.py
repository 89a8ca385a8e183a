"""`Adapters`: the low-rank adapters in a model, made with PEFT.

PEFT wraps the chosen linear layers inside the same `transformers` model object. The plain weights never change, so with
the adapters off the model is the policy that was loaded.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.random
from torch import Tensor, nn

from leyden.core.errors import PolicyError, UsageError
from leyden.core.policy.options import LoraOptions

_NAME = "default"
_BASE = "base_layer."


class Adapters:
    """The adapters of one model, which are its only trained weights. At first they do not change its output."""

    def __init__(self, module: nn.Module, options: LoraOptions, source: str, seed: int = 0) -> None:
        """Put adapters into `module`; A is drawn from `seed`, and B begins as 0.

        Raises UsageError if `options` name layers that the model's blocks do not have.
        """
        self.options = options
        self._module = module
        self._wrapper = _wrapped(module, options, source, seed)
        self._layers = _adapted(module)

    def parameters(self) -> list[nn.Parameter]:
        """Return A and B of every adapted layer."""
        return [parameter for name, parameter in self._module.named_parameters() if self._is_own(name)]

    def weights(self) -> dict[str, Tensor]:
        """Return A and B of every adapted layer by their names in the model, as views."""
        own = self._module.state_dict(keep_vars=True)
        return {name: tensor.detach() for name, tensor in own.items() if self._is_own(name)}

    def plain(self) -> dict[str, Tensor]:
        """Return the model's weights without adapters, under their original names, as views."""
        own = self._module.state_dict(keep_vars=True)
        return {name.replace(_BASE, ""): tensor for name, tensor in own.items() if not self._is_own(name)}

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """Return the weights with the adapters added, under the original names; adapted weights are copies."""
        weights = self.plain()
        for name, layer in self._layers.items():
            weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(_NAME)
        return weights

    @contextmanager
    def off(self) -> Generator[None]:
        """Inside the block the model computes without its adapters. Two threads must not use this at once."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    def save(self, folder: Path) -> None:
        """Write the adapters in PEFT's own format: `adapter_config.json` and `adapter_model.safetensors`."""
        self._wrapper.save_pretrained(folder, save_embedding_layers=False)

    def _is_own(self, name: str) -> bool:
        layer, _, rest = name.partition(".lora_")
        return bool(rest) and layer in self._layers


def _wrapped(module: nn.Module, options: LoraOptions, source: str, seed: int) -> Any:
    try:
        import peft
    except ImportError:
        raise PolicyError("LoRA needs the package peft: pip install 'leyden-core[train]'") from None
    from transformers.pytorch_utils import Conv1D

    library: Any = peft
    config = library.LoraConfig(
        r=options.rank,
        lora_alpha=options.scale,
        target_modules=_chosen(module, options, source),
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in _parts(module).values()),
        task_type="CAUSAL_LM",
    )
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(seed)
        return library.get_peft_model(module, config)


def _chosen(module: nn.Module, options: LoraOptions, source: str) -> list[str]:
    """Return the names of the linear layers to adapt, without the output head: it may share weights with the embedding.

    Raises UsageError if a name in `options` matches no layer, or if there is no linear layer.
    """
    from transformers.pytorch_utils import Conv1D

    hf: Any = module
    head = hf.get_output_embeddings()
    linear = [
        name for name, part in _parts(module).items() if isinstance(part, nn.Linear | Conv1D) and part is not head
    ]
    targets = linear if options.target_modules is None else options.target_modules
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            linear_names = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UsageError(
                f"lora.target_modules: {source} has no linear layer {target!r} in its blocks; it has {linear_names}"
            )
    if not linear:
        raise UsageError(f"lora: {source} has no linear layer that could be adapted")
    return [name for name in linear if any(f".{name}".endswith(f".{target}") for target in targets)]


def _adapted(module: nn.Module) -> dict[str, Any]:
    return {name: layer for name, layer in _parts(module).items() if hasattr(layer, "get_delta_weight")}


def _parts(module: nn.Module) -> dict[str, Any]:
    """Return the submodules by name."""
    hf: Any = module
    return dict(hf.named_modules())
