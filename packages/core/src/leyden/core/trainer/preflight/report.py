"""Reports of preflight checks: observations, and what to change."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from leyden.core.masking import mask_values
from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["ok", "warning", "failure", "unchecked"]
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red", "unchecked": "dim"}


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    name: str
    status: Status
    seen: str
    """Observation, with numbers where available; for an unchecked result, the reason."""
    change: str = ""
    """Advice what to change; empty if nothing needs to change."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all checks of a run, stored in `check.json`."""

    results: tuple[CheckResult, ...]
    rollouts: int = 0
    """Number of rollouts that were examined."""
    seconds: float = 0.0
    """Total time in seconds, including rollouts."""
    rollout_seconds: float = 0.0
    kept: str | None = None
    """Folder that remains for inspection, if the check failed or rollouts failed; else None."""

    @property
    def failures(self) -> list[CheckResult]:
        """Results that would keep the run from learning."""
        return [result for result in self.results if result.status == "failure"]

    @property
    def proven(self) -> bool:
        """Whether everything was checked without failure; warnings are allowed."""
        return all(result.status in ("ok", "warning") for result in self.results)

    def result(self, name: str) -> CheckResult:
        """Return the result of the check called `name`; raises KeyError."""
        return {result.name: result for result in self.results}[name]

    def summary(self) -> str:
        """Return one line with the number of results by status, and the time taken."""
        counts = [sum(result.status == status for result in self.results) for status in _COLOURS]
        counted = [f"{count} {status}" for status, count in zip(_COLOURS, counts, strict=True) if count]
        took = f"{self.rollouts} rollouts in {self.rollout_seconds:.1f} s"
        return f"check: {', '.join(counted)} ({took}, the rest in {self.seconds - self.rollout_seconds:.1f} s)"

    def complaint(self) -> str:
        """Return the failures as text for an error message."""
        lines = [f"  {result.name}: {result.seen}. {result.change}".rstrip() for result in self.failures]
        return "the check found that this run would not learn:\n" + "\n".join(lines)

    def remarks(self) -> str:
        """Return the failures, or else warnings and unchecked results, as text for the record of the check."""
        if self.failures:
            return self.complaint()
        odd = [*worst_first(self.results), *(result for result in self.results if result.status == "unchecked")]
        return "the check found:\n" + "\n".join(f"  {one.name}: {one.seen}. {one.change}".rstrip() for one in odd)


def ok(name: str, seen: str) -> CheckResult:
    """Return the result of a check that found nothing wrong."""
    return CheckResult(name=name, status="ok", seen=seen)


def warning(name: str, seen: str, change: str) -> CheckResult:
    """Return the result of a check that found something odd or inconclusive; the run may still learn."""
    return CheckResult(name=name, status="warning", seen=seen, change=change)


def failure(name: str, seen: str, change: str) -> CheckResult:
    """Return the result of a check that shows that the run cannot learn, or not what was requested."""
    return CheckResult(name=name, status="failure", seen=seen, change=change)


def unchecked(name: str, because: str) -> CheckResult:
    """Return the result of a check that had nothing to examine, because of another check's result."""
    return CheckResult(name=name, status="unchecked", seen=because)


def worst_first(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return failures, then warnings, each in the given order."""
    all_results = list(results)
    return [result for status in ("failure", "warning") for result in all_results if result.status == status]


def check_table(report: CheckReport) -> "Table":
    """Return the table for display."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=as_it_is(report.summary(), TITLE), title_justify="left", show_lines=False)
    for column in ("check", "", "seen", "what to change"):
        table.add_column(column, overflow="fold")
    for result in report.results:
        colour = _COLOURS[result.status]
        seen, change = as_it_is(result.seen), as_it_is(result.change)
        table.add_row(as_it_is(result.name), Text(result.status, style=colour), seen, change)
    return table


def save_report(report: CheckReport, path: Path) -> None:
    """Write a report as JSON, with secrets masked."""
    masked = mask_values(msgspec.to_builtins(report))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(masked), indent=2) + b"\n")


def load_report(path: Path) -> CheckReport:
    """Read a report that `save_report` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=CheckReport)
