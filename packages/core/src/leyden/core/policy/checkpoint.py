"""Checkpoints: everything needed to go on exactly where a run was. Knows nothing of runs, stores or steps' meaning.

A checkpoint is a folder `step-00000012` (`.2`, `.3` when the same step was saved again), written whole or not at all:
`model.safetensors` (what is trained: the weights, or adapters alone), `training.pt` (optimizer and random states, no
pickled objects) and `progress.json`. Of several policies each has its first two in a folder of its name: all of them
are of one step, or there is no checkpoint.
"""

import json
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch

from leyden.core.errors import RunError
from leyden.core.policy.atomic import remove_unfinished, whole_folder
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update import Updater

MODEL, TRAINING, PROGRESS, MARK = "model.safetensors", "training.pt", "progress.json", "KEEP"
LORA = "lora"
"""Key in the header of a file of adapters, whose value is their options as JSON."""
_SAFETENSORS: Any = safetensors
_FILES: Any = safetensors.torch
Trained = Updater | Mapping[str, Updater]
"""One policy that is trained, or several by their names."""
_NAME = re.compile(r"step-(\d{8})(?:\.(\d+))?")


def save_checkpoint(
    folder: Path, step: int, trained: Trained, progress: Mapping[str, Any], keep: int = 2, *, mark: bool = False
) -> Path:
    """Write a checkpoint of what is `trained` at `step` and return its folder.

    Of those that are not marked, the `keep` latest stay. `progress` is the caller's own and must be JSON.
    """
    target = _unused(folder, step)
    with whole_folder(target) as pending:
        for place, updater in _places(pending, trained):
            place.mkdir(exist_ok=True)
            weights = {name: tensor.contiguous() for name, tensor in updater.model.trained_weights().items()}
            _FILES.save_file(weights, place / MODEL, metadata={"format": "pt", **_described(updater.model)})
            torch.save(_training_state(updater), place / TRAINING)
        (pending / PROGRESS).write_text(json.dumps(dict(progress)), encoding="utf-8")
        if mark:
            (pending / MARK).touch()
    _prune(folder, keep)
    return target


def save_trained(folder: Path, step: int, model: PolicyModel, progress: Mapping[str, Any]) -> Path:
    """Write a checkpoint that has no more than the weights of `model` at `step`, and return its folder.

    It can be served, exported and compared; what trained it goes on elsewhere. It takes no other's place.
    """
    target = _unused(folder, step)
    with whole_folder(target) as pending:
        weights = {name: tensor.contiguous() for name, tensor in model.trained_weights().items()}
        _FILES.save_file(weights, pending / MODEL, metadata={"format": "pt", **_described(model)})
        (pending / PROGRESS).write_text(json.dumps(dict(progress)), encoding="utf-8")
    return target


def load_checkpoint(path: Path, trained: Trained) -> dict[str, Any]:
    """Put models, optimizers and random states back as they were saved, and return the caller's progress.

    The optimizer's settings, its learning rate included, are those saved. A reference policy is not saved: it is the
    policy the updater was made with, which a run loads anew from where it began. Raises RunError when the checkpoint
    cannot be read, PolicyError when it is of another model.
    """
    try:
        progress: dict[str, Any] = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
        found = [(updater, *_read(place, updater)) for place, updater in _places(path, trained)]
    except Exception as error:
        raise RunError(f"checkpoint {path} cannot be read: {error}") from error
    for updater, weights, state in found:
        updater.model.load_weights(weights)
        updater.optimizer.load_state_dict(state["optimizer"])
        updater.steps_taken = int(state["steps_taken"])
        updater.load_extra_state(state.get("extra", {}))
        _restore_random(state, updater)
    return progress


def load_trained(path: Path, model: PolicyModel) -> None:
    """Make `model`, the policy that a run began with, the one whose weights or adapters the checkpoint holds.

    Of a checkpoint of several policies, `path` is the folder of one. Raises RunError when the checkpoint cannot be
    read, PolicyError when it is of another model.
    """
    try:
        with _SAFETENSORS.safe_open(path / MODEL, framework="pt") as file:
            described: dict[str, str] = file.metadata()
        weights = _FILES.load_file(path / MODEL, device=str(model.device))
    except Exception as error:
        raise RunError(f"checkpoint {path} cannot be read: {error}") from error
    if LORA in described:
        model.adapt(msgspec.json.decode(described[LORA], type=LoraOptions))
    model.load_weights(weights)


def mark_checkpoint(path: Path) -> None:
    """Keep this checkpoint whatever comes after it."""
    (path / MARK).touch()


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step, the last saved where there are several; None when there is none."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after, by its name."""
    return _order(checkpoint)[0]


def _places(path: Path, trained: Trained) -> list[tuple[Path, Updater]]:
    """Where in a checkpoint each policy lies."""
    if isinstance(trained, Updater):
        return [(path, trained)]
    return [(path / name, updater) for name, updater in trained.items()]


def _read(place: Path, updater: Updater) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and state of training of one policy."""
    weights = _FILES.load_file(place / MODEL, device=str(updater.model.device))
    return weights, torch.load(place / TRAINING, map_location="cpu", weights_only=True)


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    whole = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / PROGRESS).is_file()]
    return sorted(whole, key=_order)


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, -1)


def _unused(folder: Path, step: int) -> Path:
    name = f"step-{step:08d}"
    times = [_order(path)[1] for path in _checkpoints(folder) if _order(path)[0] == step]
    return folder / (f"{name}.{max(times) + 1}" if times else name)


def _prune(folder: Path, keep: int) -> None:
    remove_unfinished(folder)
    unmarked = [path for path in _checkpoints(folder) if not (path / MARK).exists()]
    for path in unmarked[: -max(1, keep)]:
        # The file that makes it whole goes first, so that a removal cut short leaves nothing to be picked.
        (path / PROGRESS).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _described(model: PolicyModel) -> dict[str, str]:
    """What must be known of the policy to read its weights again."""
    return {} if model.adapters is None else {LORA: msgspec.json.encode(model.adapters.options).decode()}


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


def _restore_random(state: Mapping[str, Any], updater: Updater) -> None:
    updater.generator.set_state(state["minibatches"])
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    algorithm, keys, *position = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *position))
    if "cuda" in state and updater.model.device.type == "cuda":
        torch.cuda.set_rng_state_all(state["cuda"])
