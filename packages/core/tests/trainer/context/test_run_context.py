from pathlib import Path
from typing import Any, cast

import pytest

from leyden.core.algorithm.staleness import LoopKind
from leyden.core.errors import UsageError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.run_context import RunContext
from leyden.core.trainer.context.run_journal import RunJournal, held_out_curve
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.timing import TimeUsage


def test_seconds_add_up_over_sittings_however_often_they_are_read(tmp_path: Path) -> None:
    config = RunConfig(name="r", agent="a", policy="p")
    began = TimeUsage.now()
    journal = RunJournal(RunFolder(tmp_path), config, Display(), Trackers(), began)
    journal.report.seconds, journal.report.cpu_seconds = 100.0, 200.0
    for _ in range(2):
        report = journal.report_now()
        used = TimeUsage.now().since(began)
        assert 100.0 < report.seconds <= 100.0 + used.seconds
        assert 200.0 <= report.cpu_seconds <= 200.0 + used.cpu_seconds


def test_the_curve_is_the_first_sets_with_the_agents_own_sampling() -> None:
    metrics = [
        {"step": 0, "held_out": "val", "success": 0.25},
        {"step": 0, "held_out": "val", "sampled": 0.125},
        {"step": 0, "held_out": "other", "success": 0.5},
        {"step": 1, "reward": 0.75},
        {"step": 1, "held_out": "val", "success": 1.0},
    ]
    assert held_out_curve(metrics) == [(0, 0.25), (1, 1.0)]
    assert held_out_curve([]) == []


async def test_a_deterministic_run_learns_from_nothing_that_only_happens_to_finish_first(tmp_path: Path) -> None:
    config = RunConfig(name="r", agent="a", policy="p", deterministic=True)
    unused: Any = cast(Any, None)
    journal = RunJournal(RunFolder(tmp_path), config, Display(), Trackers(), TimeUsage.now())
    context = RunContext(config, journal, unused, unused)
    with pytest.raises(UsageError, match="cannot have loop async"):
        async with context.collecting(LoopKind(loop="async", max_staleness=2)):
            pytest.fail("it began all the same")
    async with context.collecting(LoopKind(loop="one_off", max_staleness=1)):
        assert context.batches.position() == {"batch": 0, "ahead": None}
