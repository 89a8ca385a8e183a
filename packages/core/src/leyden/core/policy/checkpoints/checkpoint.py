"""Checkpoints: save everything needed to resume a run exactly, while the run continues.

A checkpoint is a folder (see `retention`), written completely or not at all. It holds the files of `state` and
`progress.json`. With several policies, each has the former in a folder of its name. All of them belong to the same
step, or there is no checkpoint.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch

from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import whole_folder
from leyden.core.policy.checkpoints.retention import PROGRESS, unused_folder, write_checkpoint
from leyden.core.policy.checkpoints.state import (
    LORA,
    MODEL,
    PolicyState,
    described,
    put_back,
    read_state,
    write_weights,
)
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.updater import Updater

_SAFETENSORS: Any = safetensors
_FILES: Any = safetensors.torch
Trained = Updater | Mapping[str, Updater]
"""One policy that is trained, or several by their names."""


class PendingCheckpoint:
    """A checkpoint of `trained` at `step` that is yet to be written; its contents are fixed when this object is made.

    From then until `write` ends, the updaters may compute gradients, but wait before they change weights or optimizers.
    Nothing is therefore copied. `progress` belongs to the caller and must be JSON. Of the checkpoints in `folder` that
    are not marked, the `keep` latest are kept.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        trained: Trained,
        progress: Mapping[str, Any],
        keep: int = 2,
        *,
        mark: bool = False,
    ) -> None:
        self._folder, self._step, self._keep, self._mark = folder, step, keep, mark
        self._progress = json.dumps(dict(progress))
        self._updaters = {"": trained} if isinstance(trained, Updater) else dict(trained)
        for updater in self._updaters.values():
            updater.changing.acquire()
        try:
            self._states = {name: PolicyState.of(updater) for name, updater in self._updaters.items()}
        except BaseException:
            self._release()
            raise

    def write(self) -> Path:
        """Write the checkpoint and return its folder; TrainingError if that fails. Call once, on any thread."""
        try:
            return write_checkpoint(
                self._folder,
                self._step,
                self._progress,
                self._keep,
                mark=self._mark,
                write_state=self._write_states,
            )
        finally:
            self._release()

    def _write_states(self, pending: Path) -> None:
        for name, state in self._states.items():
            (pending / name).mkdir(exist_ok=True)
            state.write(pending / name)

    def _release(self) -> None:
        for updater in self._updaters.values():
            updater.changing.release()


def save_checkpoint(
    folder: Path, step: int, trained: Trained, progress: Mapping[str, Any], keep: int = 2, *, mark: bool = False
) -> Path:
    """Write a checkpoint, as `PendingCheckpoint` does, and return its folder."""
    return PendingCheckpoint(folder, step, trained, progress, keep, mark=mark).write()


def save_trained(folder: Path, step: int, model: PolicyModel, progress: Mapping[str, Any]) -> Path:
    """Write a checkpoint that holds only the weights of `model` at `step`, and return its folder.

    It can be served, exported and compared. The training state is kept by an external loop. No other checkpoint is
    removed.
    """
    target = unused_folder(folder, step)
    with whole_folder(target) as pending:
        write_weights(model.trained_weights(), described(model), pending)
        (pending / PROGRESS).write_text(json.dumps(dict(progress)), encoding="utf-8")
    return target


def load_checkpoint(path: Path, trained: Trained) -> dict[str, Any]:
    """Restore models, optimizers and random states as they were saved, and return the caller's progress.

    The optimizer's settings, including its learning rate, are the saved ones. A reference policy is not saved: it is
    the policy that the updater was made with, which a run loads again from its source. Raises RunError if the
    checkpoint cannot be read, and PolicyError if it belongs to another model.
    """
    try:
        progress: dict[str, Any] = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
        found = [
            (updater, *read_state(state_folder, updater)) for state_folder, updater in _state_folders(path, trained)
        ]
    except Exception as error:
        raise RunError(f"checkpoint {path} cannot be read: {error}") from error
    for updater, weights, state in found:
        put_back(updater, weights, state)
    return progress


def load_trained(path: Path, model: PolicyModel) -> None:
    """Load the checkpoint's weights or adapters into `model`, the policy that a run began with.

    For a checkpoint of several policies, `path` is the folder of one. Raises RunError if the checkpoint cannot be read,
    and PolicyError if it belongs to another model.
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


def _state_folders(path: Path, trained: Trained) -> list[tuple[Path, Updater]]:
    """Return the folder of each policy in a checkpoint."""
    if isinstance(trained, Updater):
        return [(path, trained)]
    return [(path / name, updater) for name, updater in trained.items()]
