"""A list of many runs in one store: its numbers are read with few queries, and are those of each run."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leyden.console.runs import stored_run
from leyden.console.runs.run import RunItem
from leyden.console.runs.stored_run import StoreFolder
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store

RUNS = 40
STEPS = 3


async def add(store: LightningStore, number: int, *, versions: bool = True, status: Any = "succeeded") -> None:
    """Add a run with metrics of each step and, if it has some, a version for each."""
    run_id = f"run-{number}"
    await store.add_run(Run(run_id=run_id, name=f"name-{number}", config={"steps": STEPS}))
    values = [
        {"held_out/val/success": number / 100, "held_out/val/sampled": 0.1},
        *({"reward": step * number / 10, "loss": 0.5} for step in range(1, STEPS)),
        {"reward": number / 4, "held_out/val/success": number / 50},
    ]
    await store.add_metrics(run_id, [StepMetrics(step=step, values=own) for step, own in enumerate(values)])
    if versions:
        made = [PolicyVersion(run_id=run_id, version=step, metrics=own) for step, own in enumerate(values)]
        await store.add_policy_versions(made)
    await store.update_run(run_id, status=status)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[LightningStore]:
    """A store with runs that have ended; the last one has no versions."""
    store = await open_store(f"sqlite:///{tmp_path}/shared.db")
    for number in range(RUNS):
        await add(store, number, versions=number != RUNS - 1)
    yield store
    await store.close()


@pytest.fixture
async def source(store: LightningStore, tmp_path: Path) -> AsyncGenerator[StoreFolder]:
    """The same store as the console reads it."""
    source = StoreFolder(f"sqlite:///{tmp_path}/shared.db")
    yield source
    await source.close()


async def counted(source: StoreFolder, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the queries of a source from now on."""
    store, calls = await source.open(), Counter[str]()

    def counting(name: str, query: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return query(*arguments, **named)

        return call

    for name in ("query_runs", "get_run_by_id", "query_metrics", "query_policy_versions"):
        monkeypatch.setattr(store, name, counting(name, getattr(store, name)))
    return calls


async def listed(source: StoreFolder) -> dict[str, RunItem]:
    assert await source.problem(30.0) == ""
    return {run_id: await run.listed(run_id) for run_id, run in source.runs.items()}


async def test_a_list_is_read_with_few_queries_and_equals_each_run(
    source: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_run, "VERSIONS", 100)
    calls = await counted(source, monkeypatch)

    found = await listed(source)

    pages = -(-(RUNS - 1) * (STEPS + 1) // 100)
    assert calls == {"query_runs": 1, "query_policy_versions": pages, "query_metrics": 1}
    assert len(found) == RUNS
    assert (found["run-8"].step, found["run-8"].reward) == (STEPS, 2.0)
    assert [(one.name, one.before, one.after) for one in found["run-8"].held_out] == [("val", 0.08, 0.16)]
    for run_id in ("run-0", "run-8", f"run-{RUNS - 1}"):
        assert found[run_id] == await source.runs[run_id].item(run_id)


async def test_only_what_has_changed_is_read_again(
    source: StoreFolder, store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listed(source)
    calls = await counted(source, monkeypatch)
    await store.update_run("run-3", status="running")
    await store.add_metrics("run-3", [StepMetrics(step=9, values={"reward": 0.75})])

    found = await listed(source)
    again = await listed(source)

    assert (found["run-3"].step, found["run-3"].reward, found["run-3"].state) == (9, 0.75, "running")
    assert found == again
    assert calls == {"query_runs": 2, "query_metrics": 2}  # it is still under way

    monkeypatch.setattr(stored_run, "ACTIVE", 0.0)  # as if it had not written for a long time
    await listed(source)
    assert calls["query_metrics"] == 2


async def test_what_could_not_be_read_is_read_the_next_time(
    source: StoreFolder, store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listed(source)
    await store.add_metrics("run-3", [StepMetrics(step=9, values={"reward": 0.75})])
    opened = await source.open()

    with monkeypatch.context() as patch:

        async def broken(*_: Any, **__: Any) -> Any:
            raise OSError("the disk is away")

        patch.setattr(opened, "query_metrics", broken)
        assert await source.problem(30.0) == "the disk is away"

    assert (await listed(source))["run-3"].step == 9


async def test_all_runs_are_listed_before_their_numbers_have_been_read(
    source: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, go_on = await source.open(), asyncio.Event()
    query = store.query_policy_versions

    async def slow(**given: Any) -> Any:
        await go_on.wait()
        return await query(**given)

    monkeypatch.setattr(store, "query_policy_versions", slow)

    problem = await source.problem(1.0)
    early = [await run.listed("key") for run in source.runs.values()]
    go_on.set()
    while await source.problem(30.0):  # a store that was slow is waited for a short time only
        await asyncio.sleep(0.01)
    found = await listed(source)

    assert problem.startswith(f"steps and rewards of {RUNS} runs have not been read after")
    assert [(item.name, item.state, item.steps, item.reward) for item in early[:2]] == [
        ("name-0", "finished", STEPS, None),
        ("name-1", "finished", STEPS, None),
    ]
    assert len(early) == RUNS
    assert found["run-8"].reward == 2.0


async def test_of_several_policies_the_one_that_acts_counts(source: StoreFolder, store: LightningStore) -> None:
    await listed(source)
    run = source.runs["run-8"]
    record = await store.get_run_by_id("run-8")
    assert record is not None
    run.note(replace(record, config={"acting": ["b"]}))
    both = [
        PolicyVersion(run_id="run-8", policy=policy, version=1, metrics={"held_out/val/success": success})
        for policy, success in (("a", 0.25), ("b", 0.75), ("c", 0.5))
    ]

    run.take(both)

    assert [one.before for one in (await run.listed("key")).held_out] == [0.75]
