"""`ResourceCache`: cache of the resources that rollouts run with.

A version never changes, so each version is requested once.
"""

import msgspec

from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import Rollout
from leyden.core.store.base import LightningStore

MOST = 64
"""Largest number of cached versions. When it is reached, the cache is emptied."""
_RESOURCES = msgspec.msgpack.Decoder(NamedResources)


class ResourceCache:
    """Resource cache of one runner, for one store."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], bytes] = {}

    async def of(self, rollout: Rollout) -> NamedResources:
        """Return the version that `rollout` names, else the latest one.

        Returns a fresh copy that the caller may change. Empty where the store has no resources.
        """
        wanted, version = rollout.resources_id, rollout.resources_version
        if wanted is None or version is None:
            update = await (self._store.get_resources_by_id(wanted) if wanted else self._store.get_latest_resources())
            return {} if update is None else update.resources
        known = self._known.get((wanted, version))
        if known is None:
            update = await self._store.get_resources_by_id(wanted, version)
            known = msgspec.msgpack.encode({} if update is None else update.resources)
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[wanted, version] = known
        return _RESOURCES.decode(known)
