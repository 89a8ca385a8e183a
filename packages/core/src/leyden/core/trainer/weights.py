"""The weights of a run's versions, put into a model. Loads torch only when it is used."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.errors import RunError
from leyden.core.trainer.versions import ModelVersion, VersionFile

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel


def with_version(model: "PolicyModel", versions: VersionFile, number: int) -> "PolicyModel":
    """Return the policy of version `number`: `model`, which is of the same run and gets its weights, or the first one.

    Raises RunError when the weights are not kept.
    """
    if number == 0:
        return type(model).load(model.source, device=str(model.device))
    found = versions.read().get(number)
    if found is None:
        raise RunError(f"there is no version {number} in {versions.path}")
    checkpoints: Any = import_module("leyden.core.policy.checkpoint")
    checkpoints.load_trained(weights_of(versions, found), model)
    return model


def weights_of(versions: VersionFile, version: ModelVersion) -> Path:
    """The checkpoint of `version`; raises RunError, which names those there are, when it is not kept."""
    if version.weights is None:
        there = [str(number) for number, other in versions.read().items() if other.weights is not None]
        raise RunError(
            f"the weights of version {version.version} of run {version.run!r} are not kept; there are those of "
            f"{', '.join(there) or 'none'}; --keep-checkpoints says how many stay"
        )
    return versions.path.parent / version.weights
