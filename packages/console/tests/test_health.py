"""Whether a run counts as alive, and what its signs say."""

import os
from pathlib import Path
from typing import Any

import pytest
from console_runs import CALL, made_run

from leyden.console.health import Sign, health_of
from leyden.console.rollout_index import RolloutIndex, Row
from leyden.console.run_view import RunView
from leyden.console.runs.folder_run import FolderRun
from leyden.console.runs.run import RunItem
from leyden.core.data.span import Span
from leyden.core.errors import RunError

STEPS = [{"step": step, "seconds": 2.0, "reward": 0.1 * step} for step in (1, 2)]


def running(**more: Any) -> RunItem:
    fields: dict[str, Any] = {"state": "running", "step": 2, "steps": 4, "updated": 1000.0, **more}
    return RunItem(key="run", name="run", folder="run", source="runs", **fields)


def index_of(rows: dict[str, str], active: float | None, *, is_read: bool = True) -> RolloutIndex:
    """An index of rollouts by id and status; those whose id begins with `val` are held out."""
    index = RolloutIndex(FolderRun(Path("run")), active=active, is_read=is_read)
    for name, status in rows.items():
        held_out = "val" if name.startswith("val") else ""
        index.rows[name] = Row(id=name, mode="val" if held_out else "train", set=held_out, status=status, started=0.0)
    return index


def progress(item: RunItem, index: RolloutIndex, now: float) -> Sign:
    return health_of(item, STEPS, index, now).liveness[1]


def test_a_run_whose_evaluation_takes_longer_than_a_step_is_alive() -> None:
    index = index_of({"val-val-during-v2-agent-0": "succeeded", "val-val-during-v2-agent-1": "running"}, active=1298.0)

    sign = progress(running(), index, now=1300.0)

    assert (sign.level, sign.since) == ("ok", None)
    assert sign.message == (
        "the last record is 300 s old; a step usually takes 2 s; an evaluation has 1 rollout to go; the last activity "
        "of a rollout is 2 s old"
    )


def test_a_run_in_which_nothing_happens_raises_an_alarm_since_the_last_sign() -> None:
    index = index_of({"train-v2-b2-0-0": "running"}, active=1100.0)

    sign = progress(running(), index, now=1300.0)

    assert (sign.level, sign.since) == ("alarm", 1100.0)
    assert "evaluation" not in sign.message


def test_no_alarm_is_raised_before_the_rollouts_have_been_read() -> None:
    assert progress(running(), index_of({}, active=None, is_read=False), now=1300.0).level == "unknown"


def test_what_follows_the_last_step_is_not_compared_with_a_step() -> None:
    sign = progress(running(step=4), index_of({}, active=None), now=1300.0)

    assert (sign.level, sign.since) == ("unknown", 1000.0)
    assert sign.message.endswith("all steps were taken")


@pytest.mark.parametrize(("step", "said"), [(1, "1 step was taken"), (2, "2 steps were taken")])
def test_counts_have_the_noun_in_their_number(step: int, said: str) -> None:
    health = health_of(running(state="finished", step=step), STEPS, index_of({"train-0": "failed"}, None), now=0.0)

    assert health.liveness[1].message == said
    assert health.liveness[2].message.startswith("1 of the last 1 rollout failed")
    assert [signal.text for signal in health.signals if signal.name == "reward drift"] == [
        "0.2 mean reward (1 step before: 0.1)"
    ]


async def test_the_calls_of_a_running_rollout_are_activity(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    store = await folder.store_location.open()
    await store.enqueue_rollout({}, mode="val", rollout_id="val-val-after-v2-agent-0")
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    end = claimed.attempt.start_time + 100.0
    call = Span(
        rollout_id=claimed.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        sequence_id=0,
        trace_id="0" * 32,
        span_id=CALL,
        name="chat model",
        start_time=end - 1.0,
        end_time=end,
    )
    await store.add_many_spans([call])
    await store.close()
    run = FolderRun(folder.path)
    index = RolloutIndex(run)

    await index.look()
    await run.close()

    assert (index.is_read, index.active) == (True, end)


async def test_a_failure_has_the_time_at_which_it_was_recorded(tmp_path: Path) -> None:
    folder = made_run(tmp_path, finished=False)
    folder.note_session_error(RunError("the disk is full"))
    os.utime(folder.metrics_file, (1000.0, 1000.0))
    os.utime(folder.session_error_file, (1025.0, 1025.0))
    run = FolderRun(folder.path)
    view = RunView("small", run)

    (process, *_) = (await view.health()).liveness
    await view.close()
    await run.close()

    assert process == Sign(name="process", level="alarm", message="the run has failed: the disk is full", since=1025.0)
