"""The index of a run's rollouts while the run is stopped and continued."""

from pathlib import Path

from console_runs import made_run

from leyden.console.rollout_index import RolloutIndex
from leyden.console.runs.folder_run import FolderRun
from leyden.core.trainer.rollouts.interrupted import requeue, set_aside

ROLLOUT = "train-v2-b2-0-0"


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
    await store.enqueue_rollout({"question": "What is 1 + 1?"}, mode="train", rollout_id=ROLLOUT)
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    await store.update_rollout(ROLLOUT, status="failed", metadata={"abandoned": True})
    run = FolderRun(folder.path)
    index = RolloutIndex(run)

    await index.look()
    before = index.rows[ROLLOUT].error
    error = {"kind": "worker", "type": "RunStopped", "message": "the run was stopped"}
    await store.update_attempt(ROLLOUT, claimed.attempt.attempt_id, "failed", metadata={"error": error})
    await store.close()
    await index.look()
    await run.close()

    assert (before, index.rows[ROLLOUT].error) == ("", "the run was stopped")
