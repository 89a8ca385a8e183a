"""Store contract, runs: runs, the metrics of their steps, and the versions of their policies."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import math
from typing import Any

import pytest

from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.errors import IllegalMove, NotFound, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import MISSING, StoreTests

NONE: Any = None
"""For arguments that must not be None."""


def measured(step: int, **values: float) -> StepMetrics:
    """Return the metrics of a step."""
    return StepMetrics(step=step, values=values)


def version(number: int, run_id: str = "r", policy: str = "policy") -> PolicyVersion:
    """Return a version of a policy."""
    return PolicyVersion(run_id=run_id, policy=policy, version=number, parent=number - 1 if number else None)


async def steps_of(store: LightningStore, run_id: str = "r", **how: Any) -> list[int]:
    """Return the stored steps of a run."""
    return [found.step for found in await store.query_metrics(run_id, **how)]


async def versions_of(store: LightningStore, **filters: Any) -> list[tuple[str, str, int]]:
    """Return the keys of stored policy versions."""
    page = await store.query_policy_versions(**filters)
    return [(found.run_id, found.policy, found.version) for found in page]


class RunTests(StoreTests):
    """Records of runs."""

    async def test_a_run_is_kept_as_it_was_given_and_once(self, store: LightningStore) -> None:
        config = {"steps": 25, "policy": {"a": "folder"}, "seed": None, "rates": [0.5, 1e-6]}
        given = Run(run_id="r", name="my run", experiment="rates", config=config, metadata={"by": "me"})
        made = await store.add_run(given)
        assert (made.status, made.end_time, made.config, made.metadata) == ("running", None, config, {"by": "me"})
        assert made.start_time == made.update_time > 1e9
        assert await store.add_run(Run(run_id="r", name="another")) == made
        assert await store.get_run_by_id("r") == made
        assert (await store.query_runs()).items == [made]
        later = await store.add_run(Run(run_id="r2", name="my run", start_time=12.5))
        assert (later.start_time, later.experiment, later.config) == (12.5, None, {})

    async def test_a_run_ends_and_goes_on(self, store: LightningStore) -> None:
        made = await store.add_run(Run(run_id="r", name="r"))
        ended = await store.update_run("r", status="failed")
        assert ended.end_time is not None and ended.end_time >= made.start_time
        with pytest.raises(IllegalMove, match="run r is failed and cannot become succeeded"):
            await store.update_run("r", status="succeeded")
        assert await store.update_run("r", status="failed") == await store.get_run_by_id("r")
        stopped = await store.update_run("r", status="stopped")
        assert stopped.end_time is not None and stopped.end_time >= ended.end_time
        going = await store.update_run("r", status="running", experiment="e", metadata={"a": 1})
        assert (going.status, going.end_time, going.experiment, going.metadata) == ("running", None, "e", {"a": 1})
        changed = await store.update_run("r", name="n", experiment=None, config={"b": 2}, metadata=None)
        assert (changed.name, changed.experiment, changed.config, changed.metadata) == ("n", None, {"b": 2}, {})
        assert changed.status == "running"
        unknown: Any = "paused"
        with pytest.raises(ValueError, match="paused"):
            await store.update_run("r", status=unknown)
        for field in ("name", "status", "config"):
            with pytest.raises(ValueError):
                await store.update_run("r", **{field: NONE})

    async def test_runs_are_filtered_sorted_and_paged(self, store: LightningStore) -> None:
        for run_id, name, experiment in (("b", "one", "x"), ("a", "two", None), ("c", "three", "x")):
            await store.add_run(Run(run_id=run_id, name=name, experiment=experiment))
        await store.update_run("a", status="stopped")

        async def ids(**filters: Any) -> list[str]:
            return [run.run_id for run in await store.query_runs(**filters)]

        assert await ids() == ["b", "a", "c"]
        assert await ids(status_in=["stopped"]) == ["a"] and await ids(status_in=[]) == []
        assert await ids(experiment="x") == ["b", "c"]
        assert await ids(name="two") == ["a"] and await ids(name="tw") == []
        assert await ids(name_contains="o") == ["b", "a"]
        assert await ids(name_contains="o", experiment="x") == ["b"]
        assert await ids(name="two", experiment="x", filter_logic="or") == ["b", "a", "c"]
        assert await ids(run_id_in=["c", "a", MISSING]) == ["a", "c"]
        assert await ids(sort_by="run_id") == ["a", "b", "c"]
        assert await ids(sort_by="experiment", sort_order="desc") == ["a", "b", "c"]
        assert await ids(sort_by="end_time") == ["a", "b", "c"]
        page = await store.query_runs(limit=1, offset=1)
        assert ([run.run_id for run in page], page.total) == (["a"], 3)
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_runs(sort_by="config")

    async def test_what_is_not_there_is_nothing_to_read_and_cannot_be_written(self, store: LightningStore) -> None:
        assert await store.get_run_by_id(MISSING) is None
        for run_id in (MISSING, "no such run", ""):
            assert await steps_of(store, run_id) == [] == await versions_of(store, run_id=run_id)
        for call in (
            store.update_run(MISSING, name="x"),
            store.rewind_run(MISSING, 0),
            store.add_metrics(MISSING, [measured(1, loss=1.0)]),
            store.add_policy_versions([version(0, MISSING)]),
            store.update_policy_version(MISSING, 0),
        ):
            with pytest.raises(NotFound, match=f"there is no run {MISSING}"):
                await call
        await store.add_run(Run(run_id="r", name="r"))
        with pytest.raises(NotFound, match="no version 3 of policy policy of run r"):
            await store.update_policy_version("r", 3, path="x")
        assert await steps_of(store) == [] == await versions_of(store)

    async def test_metrics_sent_again_change_nothing(self, store: LightningStore) -> None:
        run = await store.add_run(Run(run_id="r", name="r"))
        batch = [measured(step, loss=step / 4, reward=0.5) for step in range(5)]
        assert await store.add_metrics("r", batch) == 5
        page = (await store.query_metrics("r")).items
        assert [(found.step, found.values) for found in page] == [(one.step, one.values) for one in batch]
        written = await store.get_run_by_id("r")
        assert written is not None and written.update_time >= run.update_time
        assert await store.add_metrics("r", batch) == 0
        assert await store.add_metrics("r", []) == 0
        assert (await store.query_metrics("r")).items == page
        assert await store.get_run_by_id("r") == written

    async def test_what_is_measured_later_is_added_to_its_step(self, store: LightningStore) -> None:
        await store.add_run(Run(run_id="r", name="r"))
        await store.add_metrics("r", [measured(2, loss=1.0, reward=0.25), measured(7, loss=0.5)])
        late = StepMetrics(step=2, values={"reward": 0.75, "held_out/dev": 1.0}, notes={"alert/entropy": "it falls"})
        assert await store.add_metrics("r", [late, measured(3, loss=2.0), measured(3, loss=3.0)]) == 2
        second, third, last = await store.query_metrics("r")
        assert second.values == {"loss": 1.0, "reward": 0.75, "held_out/dev": 1.0}
        assert second.notes == {"alert/entropy": "it falls"}
        assert (third.step, third.values, last.step) == (3, {"loss": 3.0}, 7)

    async def test_metrics_are_paged_by_step(self, store: LightningStore) -> None:
        await store.add_run(Run(run_id="r", name="r"))
        await store.add_run(Run(run_id="r.2", name="r"))
        await store.add_metrics("r.2", [measured(1, loss=1.0)])
        for step in (3, 1, 10, 2, 400):
            await store.add_metrics("r", [measured(step, loss=1.0)])
        for limit, offset, upwards, downwards in (
            (-1, 0, [1, 2, 3, 10, 400], [400, 10, 3, 2, 1]),
            (2, 0, [1, 2], [400, 10]),
            (2, 4, [400], [1]),
            (-1, 3, [10, 400], [2, 1]),
            (3, 9, [], []),
            (0, 0, [], []),
        ):
            assert await steps_of(store, limit=limit, offset=offset) == upwards
            assert await steps_of(store, limit=limit, offset=offset, sort_order="desc") == downwards
            assert (await store.query_metrics("r", limit=limit, offset=offset)).total == 5

    async def test_metrics_from_many_at_once_are_all_kept(self, store: LightningStore) -> None:
        await store.add_run(Run(run_id="r", name="r"))
        batches = [[measured(step, **{f"m{n}": float(n)}) for step in range(3)] for n in range(10)]
        assert await asyncio.gather(*(store.add_metrics("r", batch) for batch in batches)) == [3] * 10
        expected = {f"m{n}": float(n) for n in range(10)}
        assert [found.values for found in await store.query_metrics("r")] == [expected] * 3

    async def test_what_cannot_be_is_refused_and_leaves_nothing(self, store: LightningStore) -> None:
        for run_id in ("", "a b", "../up", "a:b", "x" * 200):
            with pytest.raises(ValueError, match="cannot be a run's id"):
                await store.add_run(Run(run_id=run_id, name="r"))
        await store.add_run(Run(run_id="r", name="r"))
        with pytest.raises(ValueError, match="loss of step 3 is nan; leave out"):
            await store.add_metrics("r", [measured(2, loss=1.0), measured(3, loss=math.nan)])
        with pytest.raises(ValueError, match="step is -1"):
            await store.add_metrics("r", [measured(2, loss=1.0), measured(-1, loss=1.0)])
        with pytest.raises(ValueError, match="version is 9007199254740992"):
            await store.add_policy_versions([version(0), version(1 << 53)])
        with pytest.raises(ValueError, match="cannot be a policy's name"):
            await store.add_policy_versions([version(0, policy="a/b")])
        with pytest.raises(NotFound):
            await store.add_policy_versions([version(0), version(0, MISSING)])
        with pytest.raises(UsageError, match="cannot be stored"):
            await store.update_run("r", name="a\ud800")
        assert await steps_of(store) == [] == await versions_of(store)
        assert [run.run_id for run in await store.query_runs()] == ["r"]

    async def test_versions_are_kept_once_and_changed_by_name(self, store: LightningStore) -> None:
        await store.add_run(Run(run_id="r", name="r"))
        first = PolicyVersion(run_id="r", version=0, path="Qwen/Qwen3-0.6B", create_time=5.0, metadata={"a": [1]})
        kept, made, again = await store.add_policy_versions([first, version(1), version(1)])
        assert (kept.create_time, kept.path, kept.parent, kept.metadata) == (5.0, first.path, None, {"a": [1]})
        assert made == again and made.create_time == made.update_time > 1e9
        changed = await store.update_policy_version(
            "r", 1, path="/runs/r/step-1", note="good", metrics={"reward": 0.5}, metadata={"b": 2}
        )
        assert (changed.path, changed.note, changed.metrics) == ("/runs/r/step-1", "good", {"reward": 0.5})
        assert (changed.metadata, changed.parent, changed.create_time) == ({"b": 2}, 0, made.create_time)
        assert await store.add_policy_versions([version(1)]) == [changed]
        cleared = await store.update_policy_version("r", 1, path=None, metadata=None)
        assert (cleared.path, cleared.note, cleared.metadata) == (None, "good", {})
        assert (await store.query_policy_versions(sort_by="path")).items == [kept, cleared]
        with pytest.raises(ValueError, match="reward of version 1 is inf"):
            await store.update_policy_version("r", 1, metrics={"reward": math.inf})

    async def test_versions_are_asked_for_by_run_and_policy(self, store: LightningStore) -> None:
        for run_id in ("r", "q"):
            await store.add_run(Run(run_id=run_id, name=run_id))
        keys = [("r", "write", 0), ("q", "policy", 0), ("r", "check", 0), ("r", "write", 10), ("r", "write", 2)]
        for run_id, policy, number in keys:
            await store.add_policy_versions([version(number, run_id, policy)])
        assert await versions_of(store) == keys
        assert await versions_of(store, run_id="r") == [keys[0], *keys[2:]]
        assert await versions_of(store, run_id="r", policy="write", sort_by="version", sort_order="desc", limit=2) == [
            ("r", "write", 10),
            ("r", "write", 2),
        ]
        assert await versions_of(store, policy="policy") == [("q", "policy", 0)]
        assert (await store.query_policy_versions(run_id="r", limit=1)).total == 4
        with pytest.raises(ValueError, match="cannot sort by"):
            await store.query_policy_versions(sort_by="metrics")

    async def test_a_rewound_run_knows_nothing_of_later_steps(self, store: LightningStore) -> None:
        for run_id in ("r", "q"):
            await store.add_run(Run(run_id=run_id, name=run_id))
            await store.add_metrics(run_id, [measured(step, loss=1.0) for step in range(6)])
            await store.add_policy_versions([version(n, run_id, p) for n in range(6) for p in ("a", "b")])
        await store.rewind_run("r", 2)
        assert await steps_of(store) == [0, 1, 2] and await steps_of(store, "q") == [*range(6)]
        assert await versions_of(store, run_id="r") == [("r", p, n) for n in range(3) for p in ("a", "b")]
        assert len(await versions_of(store)) == 6 + 12
        assert await store.add_metrics("r", [measured(3, reward=1.0)]) == 1
        assert (await store.query_metrics("r")).items[-1].values == {"reward": 1.0}
        (again,) = await store.add_policy_versions([version(3, policy="a")])
        assert (await versions_of(store, run_id="r"))[-1] == ("r", "a", again.version)
