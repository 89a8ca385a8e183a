"""What a run says when an alert begins, lasts and ends: on the display, in the metrics, in the report, to trackers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.run_journal import RunJournal
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Tracker, Trackers
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import closing_table
from leyden.core.trainer.run_folder.timing import TimeUsage

MASKED = {"optimizer_steps": 0, "optimizer_steps_masked": 2}
SOUND = {"optimizer_steps": 2, "optimizer_steps_masked": 0}


class LineDisplay(Display):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, text: str) -> None:
        self.lines.append(text)


class Noted(Tracker):
    def __init__(self) -> None:
        self.states: list[Any] = []

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.states.append(metrics.get("alert/all_masked"))

    def close(self, *, failed: bool = False) -> None:
        raise AssertionError


def test_an_alert_is_said_once_kept_in_the_report_and_followed_by_trackers(tmp_path: Path) -> None:
    config, display, tracker = RunConfig(name="r", agent="a", policy="p"), LineDisplay(), Noted()
    folder = RunFolder(tmp_path)
    journal = RunJournal(folder, config, display, Trackers([tracker]), TimeUsage.now())
    for step, found in enumerate((SOUND, MASKED, MASKED, SOUND), 1):
        journal.log(step, {"tokens_trained": 0, "transitions_trained": 0, **found}, {})
    assert tracker.states == [None, 1.0, 1.0, 0.0]
    (line,) = display.lines
    assert line.startswith("alert, step 2: the correction masked every token")
    (alert,) = journal.report.alerts
    assert (alert.name, alert.since, alert.until) == ("all_masked", 2, 4)
    (line,) = [line for line in folder.metrics() if "alert" in line]
    assert line == {"step": 2, "alert": "all_masked", "message": alert.message}
    assert "alert all_masked, steps 2 to 3: " in str(closing_table(journal.report).caption)
