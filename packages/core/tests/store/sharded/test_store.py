"""A store over shards: shards that are added, drained, removed or away, copies of resources, and merged pages."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutMode
from leyden.core.data.run import Run
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.store.sharded import merging, shard_list
from leyden.core.testing.shard_lists import in_sqlite, write_list
from leyden.core.testing.store_contract.shared import span_of, taken

PROMPT: NamedResources = {"prompt": PromptTemplate(template="Say {word}")}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed list is noticed at the next call."""
    monkeypatch.setattr(shard_list, "LOOK_SECONDS", 0.0)


@asynccontextmanager
async def opened(*uris: str) -> AsyncGenerator[list[LightningStore]]:
    stores = [await open_store(uri) for uri in uris]
    yield stores
    for store in stores:
        await store.close()


async def shares(store: LightningStore) -> dict[str, int]:
    """Return how many rollouts each shard has."""
    shards: dict[str, dict[str, Any]] = (await store.statistics())["shards"]
    return {name: found.get("total_rollouts", -1) for name, found in shards.items()}


async def until(wanted: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await wanted():
            await asyncio.sleep(0.05)


async def test_a_rollout_is_on_one_shard_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    uri = write_list(tmp_path / "shards.yaml", in_sqlite("a", "b"))
    async with opened(uri) as (store,):
        queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(40)])
        claims = await store.dequeue_many_rollouts(limit=40, worker_id="w")
        assert [claim.rollout_id for claim in claims] == [rollout.rollout_id for rollout in queued]
        spans = [span_of(claim.attempt, f"{n}") for claim in claims for n in range(3)]
        assert len(await store.add_many_spans(spans)) == 120
        counts = await store.statistics()
    assert (counts["name"], counts["total_rollouts"], counts["total_spans"], counts["total_workers"]) == (
        "shard",
        40,
        120,
        1,
    )
    assert (
        set(counts["shards"]) == {"a", "b"} and min(found["total_rollouts"] for found in counts["shards"].values()) > 5
    )
    for name in "ab":
        async with opened(f"sqlite:///{tmp_path}/{name}.db") as (shard,):
            for rollout in await shard.query_rollouts():
                assert isinstance(rollout, AttemptedRollout)
                assert (await shard.query_spans(rollout.rollout_id)).total == 3


async def test_a_shard_is_added_and_drained_while_processes_run(tmp_path: Path) -> None:
    path = tmp_path / "shards.yaml"
    uri = write_list(path, in_sqlite("a"))
    async with opened(uri, uri) as (store, other):
        waiting = asyncio.create_task(other.dequeue_many_rollouts(timeout=20))
        first = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        await waiting
        resources = await store.update_resources("r", PROMPT)
        write_list(path, in_sqlite("a", "b"))
        second = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        assert all(rollout.resources_version == 1 for rollout in second)
        assert (await shares(other))["b"] > 2
        for rollout in (*first, *second):
            found = await other.get_rollout_by_id(rollout.rollout_id)
            assert found is not None and found.rollout_id == rollout.rollout_id
        write_list(path, in_sqlite("a", "b"), a="draining")
        before = await shares(store)
        third = await other.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        assert await shares(store) == {"a": before["a"], "b": before["b"] + 20}
        claims = await store.dequeue_many_rollouts(limit=100)
        assert {claim.rollout_id for claim in claims} >= {rollout.rollout_id for rollout in third}
        assert len(claims) == 59
        for claim in (*claims, *waiting.result()):
            await other.update_attempt(claim.rollout_id, "latest", status="succeeded")
        counts = (await store.statistics())["shards"]["a"]
        assert (counts["state"], counts["unfinished_rollouts"]) == ("draining", 0)
        write_list(path, in_sqlite("b"))
        assert await store.get_resources_by_id("r") == resources
        assert (await store.query_rollouts()).total == before["b"] + 20


async def test_a_removed_shard_with_unfinished_rollouts_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shards.yaml"
    async with opened(write_list(path, in_sqlite("a", "b"))) as (store,):
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        left = (await shares(store))["b"]
        write_list(path, in_sqlite("a"))
        with caplog.at_level(logging.WARNING):
            assert (await store.query_rollouts()).total == 20 - left
    assert f"shard b is no longer listed in {path}, with {left} of unfinished rollouts" in caplog.text


async def test_a_shard_that_is_away_takes_only_its_share_along_and_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    uri = write_list(tmp_path / "shards.yaml", {**in_sqlite("a"), "b": "sqlite:///b/b.db"})
    async with opened(uri) as (store,):
        rollouts = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        share = (await shares(store))["a"]
        await store.add_run(Run(run_id="r", name="r"))
        before = await store.add_resources(PROMPT)
    folder.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING):
        async with opened(uri) as (store,):
            missing = f"shard b (sqlite:///{folder}/b.db) cannot be reached: "
            page = await store.query_rollouts()
            assert (page.total, len(page)) == (share, share)
            assert len(page.missing) == 1 and page.missing[0].startswith(missing)
            with pytest.raises(StoreError, match=r"the results of shard b .* are missing"):
                page.complete()
            here = {rollout.rollout_id for rollout in page}
            lost = next(rollout for rollout in rollouts if rollout.rollout_id not in here)
            with pytest.raises(
                StoreError, match=f"rollout {lost.rollout_id} is on no shard that can be reached; shard b"
            ):
                await store.get_rollout_by_id(lost.rollout_id)
            new = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
            assert {rollout.resources_id for rollout in new} == {before.resources_id}
            newer = await store.add_resources({})
            claims = await store.dequeue_many_rollouts(limit=100, worker_id="w")
            assert {claim.rollout_id for claim in claims} == here | {rollout.rollout_id for rollout in new}
            waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[lost.rollout_id], timeout=20))
            assert (await store.statistics())["shards"]["b"]["problem"].startswith(missing)
            await asyncio.sleep(0.05)
            (tmp_path / "away").rename(folder)
            await until(lambda: returned(store))
            (claim,) = [
                each for each in await store.dequeue_many_rollouts(limit=100) if each.rollout_id == lost.rollout_id
            ]
            assert claim.attempt.sequence_id == 1
            await store.update_attempt(lost.rollout_id, "latest", status="succeeded")
            assert [rollout.status for rollout in await waiting] == ["succeeded"]
            assert await store.get_latest_resources() == newer
            assert (await store.query_rollouts()).complete().total == 40
            assert (await store.enqueue_rollout(1)).resources_id == newer.resources_id
    assert "shard b can be reached again after" in caplog.text
    async with opened(f"sqlite:///{folder}/b.db") as (shard,):
        assert await shard.get_latest_resources() == newer


async def returned(store: LightningStore) -> bool:
    return not (await store.query_rollouts(limit=0)).missing


async def test_a_rollout_that_was_queued_again_while_its_shard_was_away_is_worked_on_once(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    uri = write_list(tmp_path / "shards.yaml", {**in_sqlite("a"), "b": "sqlite:///b/b.db"})
    names = [f"step-1/{n}" for n in range(20)]
    requests = [EnqueueRollout(input=1, rollout_id=name) for name in names]
    async with opened(uri) as (store,):
        await store.enqueue_many_rollouts(requests)
        on_b = (await shares(store))["b"]
    assert 3 < on_b < 17
    folder.rename(tmp_path / "away")
    async with opened(uri) as (store,):
        await store.enqueue_many_rollouts(requests)
        assert (await store.query_rollouts()).total == 20
        begun = [taken(await store.dequeue_rollout("w")) for _ in range(12)]
        (tmp_path / "away").rename(folder)
        await until(lambda: returned(store))
        claims = [*begun]
        while (claim := await store.dequeue_rollout("w")) is not None:
            claims.append(claim)
        assert Counter(claim.rollout_id for claim in claims) == Counter(names)
        for claim in claims:
            await store.add_span(span_of(claim.attempt))
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")
    async with opened(uri) as (store,):
        for claim in claims:
            found = await store.get_rollout_by_id(claim.rollout_id)
            assert isinstance(found, AttemptedRollout)
            assert (found.status, found.attempt.attempt_id) == ("succeeded", claim.attempt.attempt_id)
            assert (await store.query_spans(claim.rollout_id)).total == 1
        both = await store.query_rollouts()
        assert both.total == 20 + on_b
        assert Counter(rollout.status for rollout in both) == {"succeeded": 20, "cancelled": on_b}


async def test_pages_are_those_of_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_SPARE", 1)
    modes: list[RolloutMode | None] = ["train", None, "val", "train", "test", None, "val"]
    uri = write_list(tmp_path / "shards.yaml", in_sqlite("a", "b", "c"))
    memory = MemoryStore(lambda: 5.0)
    async with opened(uri) as (store,):
        for n in range(45):
            for each in (store, memory):
                await each.enqueue_rollout(n, mode=modes[n % 7], rollout_id=f"r{n * 7 % 45:02}", queue="q" * (n % 2))
        pages = ((-1, 0), (-1, 7), (1, 0), (7, 0), (20, 11), (10, 40), (5, 50), (0, 3))
        filters: list[dict[str, Any]] = [{}, {"status_in": ["queuing"]}, {"rollout_id_contains": "3"}, {"queue": "q"}]
        for sort_by, order, page, more in product(
            (None, "mode", "rollout_id", "end_time"), ("asc", "desc"), pages, filters
        ):
            how: dict[str, Any] = {"sort_by": sort_by, "sort_order": order, "limit": page[0], "offset": page[1], **more}
            found, expected = await store.query_rollouts(**how), await memory.query_rollouts(**how)
            assert [rollout.rollout_id for rollout in found] == [rollout.rollout_id for rollout in expected], how
            assert found.total == expected.total
    await memory.close()


async def test_an_existing_store_becomes_the_first_shard(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/a.db") as (store,):
        old = await store.enqueue_rollout("old")
        for template in ("1", "2", "3"):
            latest = await store.update_resources("r", {"prompt": PromptTemplate(template=template)})
        await store.add_run(Run(run_id="old", name="old"))
    async with opened(write_list(tmp_path / "shards.yaml", in_sqlite("a", "b", "c"))) as (store,):
        new = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(12)])
        assert {(rollout.resources_id, rollout.resources_version) for rollout in new} == {("r", 3)}
        await store.add_run(Run(run_id="new", name="new"))
        assert [run.run_id for run in await store.query_runs()] == ["old", "new"]
        claims = await store.dequeue_many_rollouts(limit=20)
        assert [claim.rollout_id for claim in claims] == [old.rollout_id, *(rollout.rollout_id for rollout in new)]
        assert await store.get_latest_resources() == latest
        assert (await store.update_resources("r", {})).version == 4
    async with opened(f"sqlite:///{tmp_path}/c.db") as (shard,):
        assert [getattr(await shard.get_resources_by_id("r", n), "version", None) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]


async def fill(uri: str, what: str) -> None:
    async with opened(uri) as (store,):
        if what == "a run":
            await store.add_run(Run(run_id=f"of-{Path(uri).stem}", name="r"))
        else:
            await store.enqueue_rollout(uri)


@pytest.mark.parametrize("what", ["a run", "a rollout"])
async def test_two_stores_that_exist_are_refused_as_shards_of_one_list(tmp_path: Path, what: str) -> None:
    for name in "ac":
        await fill(f"sqlite:///{tmp_path}/{name}.db", what)
    with pytest.raises(UsageError, match=r"the shards a, c in .*shards\.yaml all have rollouts or runs from before"):
        async with opened(write_list(tmp_path / "shards.yaml", in_sqlite("a", "b", "c"))):
            pass
    async with opened(write_list(tmp_path / "shards.yaml", in_sqlite("a", "b"))) as (store,):
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(12)])
        await store.add_run(Run(run_id="new", name="new"))
    async with opened(f"shard:///{tmp_path}/shards.yaml") as (store,):  # what they stored as shards is no objection
        assert "new" in [run.run_id for run in await store.query_runs()]


async def test_a_store_that_exists_is_not_added_beside_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shards.yaml"
    for name in "ac":
        await fill(f"sqlite:///{tmp_path}/{name}.db", "a rollout")
    async with opened(write_list(path, in_sqlite("a", "b"))) as (store,):
        with caplog.at_level(logging.ERROR):
            write_list(path, in_sqlite("a", "b", "c"), a="draining")
            assert (await store.query_rollouts()).total == 1
        assert "the shards a, c in" in caplog.text and "listed before stay in use" in caplog.text
        counts = (await store.statistics())["shards"]
        assert {name: found["state"] for name, found in counts.items()} == {"a": "active", "b": "active"}
        write_list(path, in_sqlite("b", "c"))
        assert (await store.query_rollouts()).total == 1
        assert set((await store.statistics())["shards"]) == {"b", "c"}


async def test_a_new_run_is_not_split_while_its_shard_is_away(tmp_path: Path) -> None:
    uri = write_list(tmp_path / "shards.yaml", {**in_sqlite("a"), "b": "sqlite:///b/b.db"})
    added: list[str] = []
    async with opened(uri) as (store,):
        for n in range(12):
            try:
                added.append((await store.add_run(Run(run_id=f"r{n}", name="r"))).run_id)
            except StoreError as error:
                assert f"run r{n} is on no shard that can be reached; shard b" in str(error)
        assert 0 < len(added) < 12
        assert [run.run_id for run in await store.query_runs()] == added
