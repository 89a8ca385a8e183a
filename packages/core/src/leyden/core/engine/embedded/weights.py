"""Weights of an embedded engine: loading, copying and replacing them."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from leyden.core.engine.embedded.cache import CacheShape
from leyden.core.errors import EngineError, PolicyError, first_line
from leyden.core.images.processor import model_class

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that depend on the longest sequence of a batch, so a row's result would depend on other rows."""


def load_model(path: str | Path, device: str = "cpu", dtype: str = "float32") -> PreTrainedModel:
    """Return a causal language model from a folder or a hub name, without running code that comes with it.

    Raises PolicyError in one line if there is no such folder, or if it holds no model that can be loaded.
    """
    if dtype not in DTYPES:
        raise PolicyError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    folder = Path(path)
    if folder.exists() and not (folder / "config.json").is_file():
        raise PolicyError(f"{path} holds no model: it has no config.json")
    if not folder.exists() and (folder.is_absolute() or str(path).startswith((".", "~")) or str(path).count("/") > 1):
        raise PolicyError(
            f"{path} does not exist; give a folder with a Hugging Face model, or a hub name like org/model"
        )
    try:
        model = model_class(str(path)).from_pretrained(str(path), dtype=DTYPES[dtype], trust_remote_code=False)
        return model.to(device).eval()
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise PolicyError(f"{path} cannot be loaded as a causal language model: {first_line(error)}") from error


def own_copy(model: nn.Module) -> nn.Module:
    """Return a copy of `model` for inference that shares no weight with it; tied weights stay tied."""
    own = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    return own


def round_weights(model: nn.Module, *, matrices_only: bool) -> None:
    """Round the weights of `model` to bfloat16, or only its matrices; tied weights stay tied."""
    for parameter in model.parameters():
        if parameter.dim() > 1 or not matrices_only:
            parameter.data = parameter.data.bfloat16()
    if not matrices_only:
        model.bfloat16()


def context_length(model: nn.Module) -> int:
    """Return the maximum context length of `model`; EngineError if it is unknown or the model cannot be batched."""
    config = cast(Any, model).config.get_text_config()
    rope = cast("dict[str, Any]", getattr(config, "rope_parameters", None) or {})
    parts = [rope, *(cast("dict[str, Any]", value) for value in rope.values() if isinstance(value, dict))]
    if bad := LENGTH_DEPENDENT_ROPE.intersection(part.get("rope_type") for part in parts):
        raise EngineError(f"{config.model_type} uses {min(bad)} rotary embeddings, which depend on the batch")
    length = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(length, int):
        raise EngineError(f"{config.model_type} has no context length in its configuration; set context_length")
    return length


@torch.inference_mode()
def cache_shape(model: nn.Module) -> CacheShape:
    """Return the shape of one token's keys and values, found with a pass over two tokens; EngineError without them."""
    hf = cast(Any, model)
    name, device = type(model).__name__, hf.device
    layers: list[Any] | None = None
    try:
        cache = hf(input_ids=torch.tensor([[1, 2]], device=device), use_cache=True).past_key_values
        layers = getattr(cache, "layers", None)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EngineError(f"{name} cannot compute two tokens: {error}") from error
    shapes = {
        (
            *(tuple(layer.keys.shape) if _is_attention(layer) else ()),
            layer.values.shape[-1] if _is_attention(layer) else 0,
        )
        for layer in layers or []
    }
    if not layers or len(shapes) != 1 or len(shape := shapes.pop()) != 5 or shape[2] != 2 or shape[3] != shape[4]:
        raise EngineError(
            f"{name} does not have keys and values of the same shape in every layer, so the embedded engine cannot "
            "serve it"
        )
    return CacheShape(len(layers), shape[1], shape[3], layers[0].keys.dtype, device)


def _is_attention(layer: Any) -> bool:
    return isinstance(getattr(layer, "keys", None), Tensor) and isinstance(getattr(layer, "values", None), Tensor)


class Weights:
    """The parameters and buffers of a model by name, which can be replaced."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = dict(model.state_dict())
        self._parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._ties: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
        for name, tensor in self._tensors.items():
            self._ties[(tensor.data_ptr(), tuple(tensor.shape))].append(name)

    def check(self, new: Mapping[str, object]) -> dict[str, Tensor]:
        """Return what to copy where; EngineError unless `new` has every weight once, in its shape.

        For tied weights any one name is enough; if several are given, they must be equal.
        """
        if unknown := sorted(set(new) - set(self._tensors)):
            raise EngineError(f"the model has no weight {_listed(unknown)}")
        required = [names for names in self._ties.values() if not self._parameters.isdisjoint(names)]
        if missing := sorted(names[0] for names in required if set(new).isdisjoint(names)):
            raise EngineError(f"the update lacks {_listed(missing)}")
        chosen: dict[str, Tensor] = {}
        for names in self._ties.values():
            if not (names_in_update := [name for name in names if name in new]):
                continue
            chosen[names[0]] = self._checked_tensor(names_in_update[0], new[names_in_update[0]])
            for name in names_in_update[1:]:
                if not torch.equal(chosen[names[0]], self._checked_tensor(name, new[name])):
                    raise EngineError(f"{names_in_update[0]} and {name} are tied in the model but differ in the update")
        return chosen

    def replace(self, chosen: Mapping[str, Tensor]) -> None:
        """Copy the result of `check` into the model."""
        for name, tensor in chosen.items():
            self._tensors[name].copy_(tensor)

    def _checked_tensor(self, name: str, tensor: object) -> Tensor:
        own = self._tensors[name]
        if not isinstance(tensor, Tensor):
            raise EngineError(f"{name} is a {type(tensor).__name__}, not a tensor")
        if tensor.shape != own.shape:
            raise EngineError(
                f"{name} has shape {tuple(tensor.shape)} in the update and {tuple(own.shape)} in the model"
            )
        return tensor.detach()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
