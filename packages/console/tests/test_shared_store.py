"""Runs of one store in the console: each page has the rollouts of its run alone."""

from pathlib import Path

from console_runs import made_run

from leyden.console.runs.stored_run import StoredRun, StoreFolder
from leyden.core.data.run import Run
from leyden.core.store.open import open_store
from leyden.core.trainer.run_folder.sharing.shared_runs import place_of_run


async def test_a_run_of_a_shared_store_has_its_own_rollouts_and_facts(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    uri = f"sqlite:///{tmp_path}/shared.db"
    store = await open_store(uri)
    for name in ("one", "two"):
        place = place_of_run(folder.path, None) if name == "one" else {}
        await store.add_run(Run(run_id=name, name=name, config={"store": uri}, metadata=place))
        await store.enqueue_rollout({"n": name}, rollout_id=f"{name}.train-v0-b0-0-0", queue=name)
    (folder.path / "run_id").write_text("one\n")
    await store.close()

    source = StoreFolder(uri)
    try:
        assert await source.problem(10) == ""
        for name in ("one", "two"):
            run = source.runs[name]
            seen = await run.store()
            assert seen is not None and seen is await run.store()
            assert [one.rollout_id for one in await seen.query_rollouts()] == [f"{name}.train-v0-b0-0-0"]
            assert run.others == 0
        assert (await source.runs["one"].facts()).learning is not None
        assert (await source.runs["two"].facts()).learning is None
    finally:
        await source.close()


async def test_rollouts_of_a_store_that_knows_no_run_are_shown_whole(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/own.db"
    await (await open_store(uri)).close()
    source = StoreFolder(uri)
    try:
        assert await source.problem(10) == ""
        (run,) = source.runs.values()
        assert isinstance(run, StoredRun) and await run.store() is await source.open()
    finally:
        await source.close()
