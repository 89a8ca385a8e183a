"""Resource versions of a run: the resources that its algorithm publishes or tries, as its store holds them."""

import hashlib
from collections.abc import Callable, Mapping

import msgspec

from leyden.core.data.resources import LLM, NamedResources, Resource, edits_of, prompts_of
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import check_prompt_name

PREFIX = "rs-"


class ResourceVersions:
    """Adds versions of a run's resources to `store`, and remembers which one is published.

    The id of a version is a hash of its content, so that a resumed run names its rollouts as before. `served` replaces
    the endpoints of LLMs by the gateway's.
    """

    def __init__(
        self,
        store: LightningStore,
        initial: Mapping[str, Resource],
        served: Callable[[NamedResources], NamedResources],
    ) -> None:
        self._store, self._served = store, served
        self.initial = recordable(initial)
        """The resources that the run begins with."""
        self.resources = self.initial
        """The published resources."""
        self.resources_id = version_id(self.resources)
        """Id of the published version."""

    def changed(self, changes: Mapping[str, Resource]) -> NamedResources:
        """Return the published resources with `changes`.

        Raises UsageError for a prompt's name that cannot be a file name.
        """
        for name in [*prompts_of(changes), *edits_of(changes)]:
            check_prompt_name(name)
        return {**self.resources, **recordable(changes)}

    async def add(self, resources: NamedResources) -> str:
        """Add a version to the store, unless it is there already, and return its id."""
        found = version_id(resources)
        if await self._store.get_resources_by_id(found) is None:
            await self._store.update_resources(found, self._served(resources))
        return found

    async def publish(self, resources: NamedResources) -> str:
        """Add a version to the store, and make it the published one; return its id."""
        self.resources_id = await self.add(resources)
        self.resources = resources
        return self.resources_id


def recordable(resources: Mapping[str, Resource]) -> NamedResources:
    """Return the resources as they are recorded: of an LLM, neither its key nor its endpoint, which is the gateway."""
    return {
        name: msgspec.structs.replace(resource, endpoint="", replicas=(), api_key=None, attempt=None)
        if isinstance(resource, LLM)
        else resource
        for name, resource in resources.items()
    }


def version_id(resources: Mapping[str, Resource]) -> str:
    """Return the id of a version: equal for equal resources, which must be `recordable`."""
    content = msgspec.json.encode(dict(resources), order="deterministic")
    return PREFIX + hashlib.sha256(content).hexdigest()[:12]
