"""The index of a run's rollouts while the run is stopped and continued."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from console_runs import made_run

from leyden.console import rollout_index, run_view
from leyden.console.rollout_index import RolloutIndex
from leyden.console.run_view import RunView
from leyden.console.runs.folder_run import FolderRun
from leyden.console.runs.stored_run import StoredRun, StoreFolder
from leyden.core.data.page import Page
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.trainer.rollouts.interrupted import requeue, set_aside
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import LOCK, Holder

ROLLOUT = "train-v2-b2-0-0"


async def claimed_attempt(store: LightningStore) -> str:
    """The attempt of a rollout that a worker has begun."""
    await store.enqueue_rollout({"question": "What is 1 + 1?"}, mode="train", rollout_id=ROLLOUT)
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    return claimed.attempt.attempt_id


async def test_a_rollout_of_a_stopped_run_is_read_again_when_the_run_is_continued(tmp_path: Path) -> None:
    folder = made_run(tmp_path, finished=False)
    store = await folder.store_location.open()
    await store.enqueue_rollout({"question": "What is 1 + 1?"}, mode="train", rollout_id=ROLLOUT)
    assert await store.dequeue_rollout("worker-1") is not None
    await store.close()
    await set_aside(folder.store_location)
    run = FolderRun(folder.path)
    index = RolloutIndex(run)

    await index.look()
    stopped = index.rows[ROLLOUT]
    store = await folder.store_location.open()
    await requeue(store, (await store.query_rollouts(rollout_id_in=[ROLLOUT])).items)
    claimed = await store.dequeue_rollout("worker-2")
    assert claimed is not None
    await store.update_attempt(ROLLOUT, claimed.attempt.attempt_id, "succeeded")
    await store.close()
    await index.look()
    await run.close()

    assert (stopped.status, stopped.error) == ("failed", "the run was stopped while this attempt ran")
    assert (index.rows[ROLLOUT].status, index.rows[ROLLOUT].error) == ("succeeded", "")


async def test_an_error_that_is_recorded_after_the_rollout_has_failed_is_read(tmp_path: Path) -> None:
    """A run that begins again first fails its unfinished rollouts, and their attempts afterwards."""
    folder = made_run(tmp_path, finished=False)
    store = await folder.store_location.open()
    attempt_id = await claimed_attempt(store)
    await store.update_rollout(ROLLOUT, status="failed", metadata={"abandoned": True})
    run = FolderRun(folder.path)
    index = RolloutIndex(run)

    await index.look()
    before = index.rows[ROLLOUT].error
    error = {"kind": "worker", "type": "RunStopped", "message": "the run was stopped"}
    await store.update_attempt(ROLLOUT, attempt_id, "failed", metadata={"error": error})
    await store.close()
    await index.look()
    await run.close()

    assert (before, index.rows[ROLLOUT].error) == ("", "the run was stopped")


async def test_a_rollout_that_failed_has_its_reason_before_any_step(tmp_path: Path) -> None:
    """Of a run that ended at its check, no step has recorded why its rollouts were not trained."""
    folder = made_run(tmp_path, finished=False)
    store = await folder.store_location.open()
    attempt_id = await claimed_attempt(store)
    error = {"kind": "agent", "type": "ValueError", "message": "bad day"}
    await store.update_attempt(ROLLOUT, attempt_id, "failed", metadata={"error": error})
    await store.update_rollout(ROLLOUT, status="failed")
    await store.close()
    view = RunView("run", FolderRun(folder.path))

    await view.index.look()
    row, explained = view.index.rows[ROLLOUT], (await view.rollout(ROLLOUT))["outcome"]
    await view.close()

    assert (row.trained, row.reason) == (False, "agent error")
    assert explained.reason == row.reason


async def test_rollouts_are_read_only_while_someone_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "UNWATCHED", 0.2)
    monkeypatch.setattr(rollout_index, "PAUSE", 0.01)
    folder = made_run(tmp_path, finished=False)
    store = await folder.store_location.open()
    view = RunView("run", FolderRun(folder.path))

    async def enqueue(name: str) -> None:
        await store.enqueue_rollout({"question": "What is 1 + 1?"}, mode="train", rollout_id=name)

    async def rows_with(name: str) -> None:
        view.follow()
        async with asyncio.timeout(30):
            while name not in view.index.rows:
                await asyncio.sleep(0.01)

    await enqueue("watched")
    await rows_with("watched")
    await asyncio.sleep(1.0)
    await enqueue("unwatched")
    await asyncio.sleep(0.2)
    was_read = "unwatched" in view.index.rows
    await rows_with("unwatched")
    await view.close()
    await store.close()

    assert not was_read


async def begun(runs: Path) -> RunFolder:
    """A run that has a rollout under way and one that waits."""
    folder = made_run(runs, finished=False)
    store = await folder.store_location.open()
    await store.enqueue_rollout({"question": "What is 1 + 1?"}, mode="train", rollout_id=ROLLOUT)
    assert await store.dequeue_rollout("worker-1") is not None
    await store.enqueue_rollout({"question": "What is 1 + 2?"}, mode="train", rollout_id=f"{ROLLOUT}-next")
    await store.close()
    return folder


@pytest.mark.integration
async def test_a_rollout_of_a_killed_run_is_interrupted_and_not_running(tmp_path: Path) -> None:
    folder = await begun(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from leyden.core.trainer.run_folder.run_lock import run_lock\n"
        "with run_lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(600)"
    )
    view = RunView("small", FolderRun(folder.path))
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        await view.index.look()
        before = view.index.rows[ROLLOUT].status
        process.send_signal(signal.SIGKILL)
    await view.index.look()
    shown = await view.rollout(ROLLOUT)
    changed, _ = view.index.since(6)
    with folder.locked():  # it is continued
        await view.index.look()
        continued = view.index.rows[ROLLOUT].status
    await view.run.close()

    assert (before, view.index.rows[f"{ROLLOUT}-next"].status, continued) == ("preparing", "queuing", "preparing")
    assert [(row.id, row.status) for row in changed if row.id == ROLLOUT] == [(ROLLOUT, "interrupted")]
    assert (shown["rollout"]["status"], shown["attempts"][0].status) == ("interrupted", "interrupted")
    assert shown["outcome"].reason == "interrupted"


async def test_a_rollout_that_may_run_on_another_machine_is_not_called_interrupted(tmp_path: Path) -> None:
    folder = await begun(tmp_path)
    (folder.path / LOCK).write_bytes(msgspec.json.encode(Holder(12, "elsewhere")))
    source = StoreFolder(folder.store_location.uri)
    run, stored = FolderRun(folder.path), StoredRun(source, "")
    indexes = [RolloutIndex(run), RolloutIndex(stored)]

    for index in indexes:
        await index.look()

    assert [index.rows[ROLLOUT].status for index in indexes] == ["preparing", "preparing"]
    folder.note_session_stop("requested by SIGTERM")  # copied again, now with its end
    await indexes[0].look()
    assert indexes[0].rows[ROLLOUT].status == "interrupted"
    await run.close()
    await source.close()


async def test_the_spans_of_running_rollouts_are_read_every_few_seconds_and_once_they_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_run(tmp_path, finished=False)
    store = await folder.store_location.open()
    attempt_id = await claimed_attempt(store)
    run = FolderRun(folder.path)
    shown = await run.store()
    assert shown is not None
    queried = list[str]()
    query_spans = shown.query_spans

    async def counted(rollout_id: str, *given: Any, **named: Any) -> Page[Span]:
        queried.append(rollout_id)
        return await query_spans(rollout_id, *given, **named)

    monkeypatch.setattr(shown, "query_spans", counted)
    index = RolloutIndex(run)
    with folder.locked():
        for _ in range(3):
            await index.look()
        while_running = queried.count(ROLLOUT)
        monkeypatch.setattr("leyden.console.rollout_index.GROWING", 0.0)
        await index.look()
        seconds_later = queried.count(ROLLOUT)
        monkeypatch.setattr("leyden.console.rollout_index.GROWING", 3600.0)
        await store.update_attempt(ROLLOUT, attempt_id, "succeeded")
        await index.look()
    await store.close()
    await run.close()

    assert (while_running, seconds_later, queried.count(ROLLOUT)) == (2, 3, 4)
    assert index.rows[ROLLOUT].status == "succeeded"
