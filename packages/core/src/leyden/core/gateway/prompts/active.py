"""`ActiveEdits`: the prompt edits of each rollout, from the version of the resources that it runs with."""

from collections.abc import Iterable

from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.prompts.matching import CompiledEdits
from leyden.core.data.rollout import Rollout
from leyden.core.store.base import LightningStore

MOST = 256
"""Largest number of versions that are kept compiled. When it is reached, all are dropped."""


class ActiveEdits:
    """Prompt edits of the rollouts in `store`.

    A version of resources never changes, so each is read and compiled once. `default` are the edits of rollouts whose
    resources have none.
    """

    def __init__(self, store: LightningStore, default: PromptEdits | None = None) -> None:
        self._store = store
        self._default = None if default is None else _compiled([default])
        self._known: dict[tuple[str, int], CompiledEdits | None] = {}

    async def of(self, rollout: Rollout) -> CompiledEdits | None:
        """Return the edits of a rollout; None if no text is replaced."""
        if rollout.resources_id is None or rollout.resources_version is None:
            return self._default
        key = (rollout.resources_id, rollout.resources_version)
        try:
            return self._known[key]
        except KeyError:
            edits = await self._read(*key)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[key] = edits
        return edits

    async def _read(self, resources_id: str, version: int) -> CompiledEdits | None:
        update = await self._store.get_resources_by_id(resources_id, version)
        given = [one for one in (update.resources.values() if update else ()) if isinstance(one, PromptEdits)]
        return _compiled(given) if given else self._default


def _compiled(given: Iterable[PromptEdits]) -> CompiledEdits | None:
    return CompiledEdits(component for edits in given for component in edits.components) or None
