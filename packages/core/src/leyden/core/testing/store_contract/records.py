"""Store contract, records: resources and their versions, and updates of fields."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
from typing import Any

import pytest

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import LLM, NamedResources, PromptTemplate
from leyden.core.data.rollout import RolloutConfig
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import StoreTests, attempt_now, claimed, rollout_now

FIRST: NamedResources = {"policy": LLM(endpoint="http://h/v1", model="m", sampling_parameters={"temperature": 1})}
EDITED = PromptComponent(name="s", agent="a", role="system", position=1, text="Say {{{v1}}}", new_text="{v1} again")
SECOND: NamedResources = {
    "prompt": PromptTemplate(template="Say {word}"),
    "edits": PromptEdits(components=(EDITED,)),
}
NONE: Any = None
"""For arguments that must not be None."""


class RecordTests(StoreTests):
    """Resources, and fields that are changed manually."""

    async def test_added_resources_are_version_one_and_the_latest(self, store: LightningStore) -> None:
        first = await store.add_resources(FIRST)
        second = await store.add_resources(SECOND)
        assert first.resources_id != second.resources_id
        assert (first.version, first.resources, first.create_time) == (1, FIRST, first.update_time)
        assert await store.get_latest_resources() == second
        assert await store.get_resources_by_id(first.resources_id) == first

    async def test_an_update_is_a_new_version_and_keeps_the_old_one(self, store: LightningStore) -> None:
        first = await store.add_resources(FIRST)
        await store.add_resources({})
        await asyncio.sleep(0.002)
        second = await store.update_resources(first.resources_id, SECOND)
        assert (second.version, second.resources, second.create_time) == (2, SECOND, first.create_time)
        assert second.update_time > first.update_time
        assert await store.get_latest_resources() == second
        assert await store.get_resources_by_id(first.resources_id) == second
        assert await store.get_resources_by_id(first.resources_id, version=1) == first
        assert await store.get_resources_by_id(first.resources_id, version=3) is None
        created = await store.update_resources("mine", FIRST)
        assert (created.resources_id, created.version) == ("mine", 1)

    async def test_resources_are_queried_by_their_current_version(self, store: LightningStore) -> None:
        for name in ("a1", "a2", "b1", "a1"):
            await store.update_resources(name, {})
        page = await store.query_resources()
        assert [(found.resources_id, found.version) for found in page] == [("a2", 1), ("b1", 1), ("a1", 2)]
        page = await store.query_resources(resources_id_contains="a", sort_by="resources_id", limit=1)
        assert ([found.resources_id for found in page], page.total) == (["a1"], 2)
        assert [found.resources_id for found in await store.query_resources(resources_id="b1")] == ["b1"]
        page = await store.query_resources(sort_by="version", sort_order="desc", offset=1)
        assert [found.resources_id for found in page] == ["a2", "b1"]

    async def test_a_rollout_notes_the_resources_of_its_enqueue(self, store: LightningStore) -> None:
        before = await store.enqueue_rollout(0)
        assert (before.resources_id, before.resources_version) == (None, None)
        first = await store.add_resources(FIRST)
        noted = await store.enqueue_rollout(1)
        explicit = await store.enqueue_rollout(2, resources_id="unknown")
        started = await store.start_rollout(3)
        await store.update_resources(first.resources_id, SECOND)
        await store.add_resources({})
        read = await store.get_rollout_by_id(noted.rollout_id)
        assert read is not None
        assert (read.resources_id, read.resources_version) == (first.resources_id, 1)
        assert await store.get_resources_by_id(first.resources_id, read.resources_version) == first
        assert (explicit.resources_id, explicit.resources_version) == ("unknown", None)
        assert (started.resources_id, started.resources_version) == (first.resources_id, 1)
        without = await store.enqueue_rollout(4, resources_id="")
        assert (without.resources_id, without.resources_version) == (None, None)
        assert (await store.start_rollout(5, resources_id="")).resources_id is None
        moved = await store.update_rollout(noted.rollout_id, resources_id=first.resources_id)
        assert moved.resources_version == 2
        assert (await store.update_rollout(noted.rollout_id, resources_id=None)).resources_version is None

    async def test_fields_left_out_stay_and_none_clears(self, store: LightningStore) -> None:
        config = RolloutConfig(max_attempts=3)
        made = await store.enqueue_rollout(1, mode="train", config=config, metadata={"a": 1, "b": 2})
        assert await store.update_rollout(made.rollout_id) == made
        changed = await store.update_rollout(made.rollout_id, mode=None, metadata={"c": 3})
        assert (changed.mode, changed.metadata, changed.config, changed.input) == (None, {"c": 3}, config, 1)
        changed = await store.update_rollout(made.rollout_id, input=None, metadata=None, mode="val")
        assert (changed.mode, changed.metadata, changed.input) == ("val", {}, None)
        assert await store.get_rollout_by_id(made.rollout_id) == changed

    async def test_none_is_no_status_and_no_config(self, store: LightningStore) -> None:
        got = await claimed(store)
        with pytest.raises(ValueError):
            await store.update_rollout(got.rollout_id, status=NONE)
        with pytest.raises(ValueError):
            await store.update_rollout(got.rollout_id, config=NONE)
        with pytest.raises(ValueError):
            await store.update_attempt(got.rollout_id, "latest", status=NONE)
        unknown: Any = "paused"
        with pytest.raises(ValueError, match="paused"):
            await store.update_rollout(got.rollout_id, status=unknown)
        with pytest.raises(ValueError, match="max_attempts"):
            await store.update_rollout(got.rollout_id, config=RolloutConfig(max_attempts=0))
        assert await rollout_now(store, got) == got

    async def test_attempt_fields(self, store: LightningStore) -> None:
        got = await claimed(store)
        changed = await store.update_attempt(
            got.rollout_id, "latest", worker_id="", last_heartbeat_time=12.5, metadata={"a": 1}
        )
        assert (changed.worker_id, changed.last_heartbeat_time, changed.metadata) == ("", 12.5, {"a": 1})
        assert changed.status == "preparing"
        await store.update_attempt(got.rollout_id, got.attempt.attempt_id, metadata={"b": 2})
        assert (await attempt_now(store, got.attempt)).metadata == {"b": 2}
        assert (await rollout_now(store, got)).status == "preparing"
