"""Checkpoint state: what a checkpoint holds of one policy, and how it is written and read.

Weights, AdamW's moments and a critic's weights are files of tensors, written without a copy. The rest is small and has
no pickled objects.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.updater import Updater

MODEL, TENSORS, TRAINING = "model.safetensors", "training.safetensors", "training.pt"
LORA = "lora"
"""Key in the header of a file of adapters; its value is their options as JSON."""
APART = "tensor"
"""Key of the mapping that replaces a tensor of the training state; its value is the tensor's name in `TENSORS`."""
_FILES: Any = safetensors.torch


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Everything that is saved of one policy.

    The tensors are the policy's own, not copies, so they must not change until they are written. Random states and
    counters are copies.
    """

    weights: dict[str, Tensor]
    header: dict[str, str]
    tensors: dict[str, Tensor]
    """Tensors of the training state, by the names that replace them in `rest`."""
    rest: dict[str, Any]

    @classmethod
    def of(cls, updater: Updater) -> "PolicyState":
        """Return the current state of `updater`."""
        tensors: dict[str, Tensor] = {}
        rest = _parted(_training_state(updater), tensors, ())
        return cls(updater.model.trained_weights(), described(updater.model), tensors, rest)

    def write(self, folder: Path) -> None:
        """Write the state into `folder`."""
        write_weights(self.weights, self.header, folder)
        _FILES.save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / TENSORS)
        torch.save(self.rest, folder / TRAINING)


def write_weights(weights: Mapping[str, Tensor], header: Mapping[str, str], folder: Path) -> None:
    """Write the weights of a policy, with a header that is needed to read them."""
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    _FILES.save_file(contiguous, folder / MODEL, metadata={"format": "pt", **header})


def described(model: PolicyModel) -> dict[str, str]:
    """Return the header that is needed to read a policy's weights."""
    return {} if model.adapters is None else {LORA: msgspec.json.encode(model.adapters.options).decode()}


def read_state(folder: Path, updater: Updater) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and training state that `PolicyState.write` wrote to `folder`."""
    weights: dict[str, Tensor] = _FILES.load_file(folder / MODEL, device=str(updater.model.device))
    return weights, read_training(folder)


def read_training(folder: Path) -> dict[str, Any]:
    """Return the training state in `folder`, on the CPU.

    Checkpoints of earlier versions of this package have its tensors in `TRAINING` as well.
    """
    tensors: dict[str, Tensor] = _FILES.load_file(folder / TENSORS) if (folder / TENSORS).exists() else {}
    return _joined(torch.load(folder / TRAINING, map_location="cpu", weights_only=True), tensors)


def put_back(updater: Updater, weights: dict[str, Tensor], state: Mapping[str, Any]) -> None:
    """Restore `updater` and the random states of the process; PolicyError if the weights belong to another model."""
    updater.model.load_weights(weights)
    updater.optimizer.load_state_dict(state["optimizer"])
    updater.steps_taken = int(state["steps_taken"])
    updater.load_extra_state(state.get("extra", {}))
    updater.generator.set_state(state["minibatches"])
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    algorithm, keys, *position = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *position))
    if "cuda" in state and updater.model.device.type == "cuda":
        torch.cuda.set_rng_state_all(state["cuda"])


def _training_state(updater: Updater) -> dict[str, Any]:
    algorithm, keys, *position = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "optimizer": updater.optimizer.state_dict(),
        "steps_taken": updater.steps_taken,
        "minibatches": updater.generator.get_state(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (str(algorithm), torch.as_tensor(np.asarray(keys, dtype=np.int64)), *position),
    }
    if extra := updater.extra_state():
        state["extra"] = extra
    if updater.model.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _parted(value: Any, tensors: dict[str, Tensor], path: tuple[object, ...]) -> Any:
    """Return `value` with its tensors moved to `tensors`, named by their path in `value`."""
    if isinstance(value, Tensor):
        name = "/".join(map(str, path))
        tensors[name] = value
        return {APART: name}
    if isinstance(value, dict):
        named = cast("dict[object, Any]", value)
        return {key: _parted(inner, tensors, (*path, key)) for key, inner in named.items()}
    if isinstance(value, list | tuple):
        listed = cast("list[Any] | tuple[Any, ...]", value)
        return type(listed)(_parted(inner, tensors, (*path, at)) for at, inner in enumerate(listed))
    return value


def _joined(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `_parted`."""
    if isinstance(value, dict):
        named = cast("dict[object, Any]", value)
        if named.keys() == {APART}:
            return tensors[named[APART]]
        return {key: _joined(inner, tensors) for key, inner in named.items()}
    if isinstance(value, list | tuple):
        listed = cast("list[Any] | tuple[Any, ...]", value)
        return type(listed)(_joined(inner, tensors) for inner in listed)
    return value
