"""`KnownResources`: what rollouts run with; a version, which never changes, is asked for once. Knows no attempts."""

import msgspec

from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import Rollout
from leyden.core.store.base import LightningStore

MOST = 64
"""Versions that are kept; beyond that all are asked for again."""
_RESOURCES = msgspec.msgpack.Decoder(NamedResources)


class KnownResources:
    """Of one store, for one runner."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], bytes] = {}

    async def of(self, rollout: Rollout) -> NamedResources:
        """Return the version that `rollout` has noted, else the latest; a copy of its own, which it may change."""
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
