"""The prompt edits of a rollout: those of its resources' version, each read from the store once."""

from typing import Any

import pytest

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.rollout import Rollout
from leyden.core.gateway.prompts import active
from leyden.core.gateway.prompts.active import ActiveEdits
from leyden.core.store.memory import MemoryStore


def edits(name: str, new_text: str | None = "new") -> PromptEdits:
    component = PromptComponent(name=name, agent=name, role="system", text="own", new_text=new_text)
    return PromptEdits(components=(component,))


class CountingStore(MemoryStore):
    """A store that counts the reads of resources."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def get_resources_by_id(self, *given: Any, **more: Any) -> Any:
        self.reads += 1
        return await super().get_resources_by_id(*given, **more)


async def agents(known: ActiveEdits, rollout: Rollout) -> list[str]:
    """Return the agents whose texts are replaced in a rollout."""
    found = await known.of(rollout)
    return [] if found is None else [name for name in ("a", "b", "c") if found.of(name, None) is not None]


async def test_each_version_has_its_own_edits_and_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    known = ActiveEdits(store)
    without = await store.start_rollout("t")
    await store.update_resources("r", {"prompts": edits("a")})
    first = await store.start_rollout("t")
    await store.update_resources("r", {"one": edits("b"), "other": edits("c")})
    second = await store.start_rollout("t")
    await store.update_resources("r", {"prompts": edits("a", None)})
    unchanged = await store.start_rollout("t")
    for _ in range(2):
        assert [await agents(known, one) for one in (without, first, second, unchanged)] == [[], ["a"], ["b", "c"], []]
    assert store.reads == 3
    monkeypatch.setattr(active, "MOST", 1)
    for _ in range(2):
        assert await agents(known, second) == ["b", "c"]
        assert await agents(known, first) == ["a"]


async def test_default_edits_hold_where_the_resources_have_none() -> None:
    store = MemoryStore()
    known = ActiveEdits(store, edits("c"))
    without = await store.start_rollout("t")
    await store.add_resources({})
    empty = await store.start_rollout("t")
    await store.add_resources({"prompts": edits("a")})
    own = await store.start_rollout("t")
    assert [await agents(known, one) for one in (without, empty, own)] == [["c"], ["c"], ["a"]]
