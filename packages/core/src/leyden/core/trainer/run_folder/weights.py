"""Weights of versions: loads the weights of a run's version into a model. Imports torch only when it is used."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import replaced_folder
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel


def with_version(model: "PolicyModel", versions: VersionFile, number: int, name: str | None = None) -> "PolicyModel":
    """Return the policy of version `number`: `model` with its weights loaded, or for version 0 the initial policy.

    `model` must be of the same run. `name` selects one of several policies. Raises RunError when the weights are not
    kept.
    """
    if number == 0:
        return type(model).load(model.source, device=str(model.device))
    found = versions.read().get(number)
    if found is None:
        raise RunError(f"there is no version {number} in {versions.path}")
    checkpoints: Any = import_module("leyden.core.policy.checkpoints.checkpoint")
    path = weights_of(versions, found)
    checkpoints.load_trained(path if name is None else path / name, model)
    return model


def export_policies(models: "Mapping[str, PolicyModel]", config: RunConfig, folder: Path) -> Path:
    """Write `models`, the run's policies by name, as Hugging Face folders, and return `folder`.

    A single unnamed policy is written into `folder` itself. Named policies get a subfolder each, and all of them
    replace the old ones at once.
    """
    from leyden.core.policy.checkpoints.export import export_policy

    if not config.has_names:
        (model,) = models.values()
        return export_policy(model, model.source, folder)
    with replaced_folder(folder) as pending:
        for name, model in models.items():
            export_policy(model, model.source, pending / name)
    return folder


def weights_of(versions: VersionFile, version: ModelVersion) -> Path:
    """Return the checkpoint of `version`; raises RunError that lists the kept ones when its weights are not kept."""
    if version.weights is None:
        there = [str(number) for number, other in versions.read().items() if other.weights is not None]
        raise RunError(
            f"the weights of version {version.version} of run {version.run!r} are not kept; weights are kept of "
            f"versions {', '.join(there) or '(none)'}; --keep-checkpoints sets how many are kept"
        )
    return versions.path.parent / version.weights
