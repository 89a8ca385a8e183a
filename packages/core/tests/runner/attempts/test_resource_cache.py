"""Resources of rollouts: the version that each has noted, asked for once, and nobody else's to change."""

from typing import Any

from leyden.core.data.resources import LLM, PromptTemplate, ResourcesUpdate
from leyden.core.data.rollout import Rollout
from leyden.core.runner.attempts.resource_cache import MOST, ResourceCache
from leyden.core.store.memory import MemoryStore


class CountingStore(MemoryStore):
    requests = 0

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        self.requests += 1
        return await super().get_resources_by_id(resources_id, version)


async def queued(store: MemoryStore, resources_id: str | None = None) -> Rollout:
    return await store.enqueue_rollout({"question": "?"}, resources_id=resources_id)


async def test_a_version_is_asked_for_once_and_each_rollout_has_the_one_it_noted() -> None:
    store = CountingStore()
    await store.update_resources("r", {"prompt": PromptTemplate(template="first")})
    before = await queued(store)
    await store.update_resources("r", {"prompt": PromptTemplate(template="second")})
    after, known = await queued(store), ResourceCache(store)
    for _ in range(3):
        assert await known.of(before) == {"prompt": PromptTemplate(template="first")}
        assert await known.of(after) == {"prompt": PromptTemplate(template="second")}
    assert store.requests == 2


async def test_what_a_rollout_does_to_its_resources_no_other_sees() -> None:
    store = CountingStore()
    await store.add_resources({"llm": LLM(endpoint="http://x/v1", model="m", sampling_parameters={"top_p": 0.5})})
    rollout, known = await queued(store), ResourceCache(store)
    for _ in range(2):
        given: dict[str, Any] = await known.of(rollout)
        assert given.pop("llm").sampling_parameters.pop("top_p") == 0.5


async def test_without_a_noted_version_there_is_the_latest_or_nothing() -> None:
    store = CountingStore()
    rollout, known = await queued(store), ResourceCache(store)
    assert await known.of(rollout) == {}
    await store.add_resources({"prompt": PromptTemplate(template="later")})
    assert await known.of(rollout) == {"prompt": PromptTemplate(template="later")}
    assert await known.of(await queued(store, "unknown")) == {}


async def test_only_so_many_versions_are_kept() -> None:
    store, template = CountingStore(), PromptTemplate(template="x")
    known = ResourceCache(store)
    for _ in range(MOST + 1):
        await store.update_resources("r", {"prompt": template})
        await known.of(await queued(store))
    first = await store.update_resources("s", {"prompt": template})
    assert (first.version, store.requests) == (1, MOST + 1)
    assert len(known._known) == 1  # pyright: ignore[reportPrivateUsage]  # the bound cannot be seen from outside
