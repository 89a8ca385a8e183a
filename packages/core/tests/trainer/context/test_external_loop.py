"""Metrics of the steps of an external loop."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leyden.core.algorithm.external_loop import TaskRequest
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.external_loop import ExternalLoopRun
from leyden.core.trainer.context.run_journal import RunJournal
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.rollouts.collector import Collected, IdleTimer
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.timing import TimeUsage


async def test_the_engine_idles_in_each_step_for_the_time_of_that_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    idle = IdleTimer(lambda: now[0])

    async def task(_asked: TaskRequest, _again: int) -> Collected:
        with idle.busy():
            now[0] += 10.0
        return Collected(rollouts=2, seconds=10.0)

    async def none_are_lost(*_: Any) -> bool:
        return False

    def no_requests(*_: Any) -> list[Any]:
        return []

    config = RunConfig(name="r", agent="a", policy="p", steps=9)
    journal = RunJournal(RunFolder(tmp_path), config, Display(), Trackers(), TimeUsage.now())
    collector: Any = SimpleNamespace(idle=idle, task=task, requests=no_requests, tasks=[], held_out={})
    serving: Any = SimpleNamespace(external_replicas=object(), store=None)
    run = ExternalLoopRun(config, journal, serving, collector)
    monkeypatch.setattr("leyden.core.trainer.context.external_loop.are_lost", none_are_lost)
    for step in (1, 2, 3):
        now[0] += 5.0
        await run.rollouts(TaskRequest(step=step, place=0, row=0, copies=2))
        await run.step_taken(step, {}, kept=False)

    lines = RunFolder(tmp_path).metrics()
    assert [line["seconds_engine_idle"] for line in lines] == [5.0, 5.0, 5.0]
    assert all("seconds_trainer_idle" not in line for line in lines), "how long the loop waits is not measured"
