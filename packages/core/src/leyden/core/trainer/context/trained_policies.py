"""Trained policies: the models of a run, loaded when the algorithm requests them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from leyden.core.data.route import POLICY
from leyden.core.errors import TrainingError
from leyden.core.trainer.config import RunConfig

if TYPE_CHECKING:
    from leyden.core.policy.checkpoints.checkpoint import Trained
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater


class TrainedPolicies:
    """The policies of a run by name; `phase` counts the time in which they are loaded."""

    def __init__(self, config: RunConfig, phase: Callable[[str], AbstractContextManager[None]]) -> None:
        self._config, self._phase = config, phase
        self._models: dict[str, PolicyModel] = {}
        self._prepared: dict[str, PolicyModel] = {}

    def load(self, name: str) -> "PolicyModel":
        """Load the initial policy of this name, ready to train."""
        from leyden.core.policy.model import PolicyModel

        model = self._prepared.pop(name, None)
        with self._phase("load"):
            model = model or PolicyModel.load(self._config.policies[name], device=self._config.device)
        self._models[name] = model
        return model

    def loaded(self, name: str) -> "PolicyModel":
        """Return the policy of this name in its current state; loads it if that was not done."""
        return self._models.get(name) or self.load(name)

    def initial(self, name: str) -> "PolicyModel":
        """Return a copy of the policy of this name as the run began; the policy in its current state stays as it is.

        The gradients of its last update are freed, so that the copy needs no further memory. Adapters need no copy.
        """
        from leyden.core.policy.model import PolicyModel

        current = self.loaded(name)
        if current.adapters is not None:
            return current.frozen_copy()
        for parameter in current.parameters():
            parameter.grad = None
        return PolicyModel.load(self._config.policies[name], device=self._config.device)

    def prepare(self, models: "Mapping[str, PolicyModel]") -> None:
        """Make `models`, freshly loaded and unchanged, the next ones that `load` returns."""
        self._prepared = dict(models)

    def prepared(self) -> "Mapping[str, PolicyModel]":
        """Return the models that `load` returns next; raises TrainingError when none was prepared."""
        if not self._prepared:
            raise TrainingError("no policy was loaded in advance")
        return self._prepared

    def all(self) -> "Mapping[str, PolicyModel]":
        """Return the policies in their current state. Raises TrainingError for a policy that was never loaded."""
        if missing := [name for name in self._config.policies if name not in self._models]:
            raise TrainingError(f"the algorithm ended without loading the policy {', '.join(missing)}")
        return self._models

    def checkpoint_content(self, updaters: "Mapping[str, Updater]") -> "Trained":
        """Return what a checkpoint stores: the single unnamed policy, the policies by name, or nothing without one."""
        if not self._config.policies:
            return {}
        return updaters if self._config.has_names else updaters[POLICY]
