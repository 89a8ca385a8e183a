"""`CheckResult` and `CheckReport`: what was seen, and what to change. Know nothing of how it is found."""

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
    """What one check found."""

    name: str
    status: Status
    seen: str
    """What was seen, in numbers where there are some; of what was not checked, why not."""
    change: str = ""
    """What to do about it; empty where nothing is to be done."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What all checks of a run found. Lives in `check.json`."""

    results: tuple[CheckResult, ...]
    rollouts: int = 0
    """Rollouts that were looked at."""
    seconds: float = 0.0
    """All of it, the rollouts included."""
    rollout_seconds: float = 0.0
    kept: str | None = None
    """The folder that is left to be looked at, where the check is not passed or rollouts failed."""

    @property
    def failures(self) -> list[CheckResult]:
        """What would keep the run from learning."""
        return [result for result in self.results if result.status == "failure"]

    @property
    def proven(self) -> bool:
        """Whether everything was looked at and nothing is wrong; warnings are allowed."""
        return all(result.status in ("ok", "warning") for result in self.results)

    def result(self, name: str) -> CheckResult:
        """The result of the check called `name`; raises KeyError."""
        return {result.name: result for result in self.results}[name]

    def summary(self) -> str:
        """One line: how many checks ended how, and what it took."""
        counts = [sum(result.status == status for result in self.results) for status in _COLOURS]
        said = [f"{count} {status}" for status, count in zip(_COLOURS, counts, strict=True) if count]
        took = f"{self.rollouts} rollouts in {self.rollout_seconds:.1f} s"
        return f"check: {', '.join(said)} ({took}, the rest in {self.seconds - self.rollout_seconds:.1f} s)"

    def complaint(self) -> str:
        """The failures in words, for an error."""
        lines = [f"  {result.name}: {result.seen}. {result.change}".rstrip() for result in self.failures]
        return "this run would not learn, the check says:\n" + "\n".join(lines)

    def remarks(self) -> str:
        """All that is not as it should be, for the record of the check."""
        if self.failures:
            return self.complaint()
        odd = [*worst_first(self.results), *(result for result in self.results if result.status == "unchecked")]
        return "the check found:\n" + "\n".join(f"  {one.name}: {one.seen}. {one.change}".rstrip() for one in odd)


def ok(name: str, seen: str) -> CheckResult:
    """Nothing is wrong."""
    return CheckResult(name=name, status="ok", seen=seen)


def warning(name: str, seen: str, change: str) -> CheckResult:
    """The run may learn, but something is odd or cannot be told."""
    return CheckResult(name=name, status="warning", seen=seen, change=change)


def failure(name: str, seen: str, change: str) -> CheckResult:
    """The run cannot learn, or not what was asked."""
    return CheckResult(name=name, status="failure", seen=seen, change=change)


def unchecked(name: str, because: str) -> CheckResult:
    """There was nothing to look at, because of what another check says."""
    return CheckResult(name=name, status="unchecked", seen=because)


def worst_first(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Failures, then warnings; each in the order given."""
    listed = list(results)
    return [result for status in ("failure", "warning") for result in listed if result.status == status]


def check_table(report: CheckReport) -> "Table":
    """The table a person sees."""
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
    """Write a report as JSON, without secrets."""
    masked = mask_values(msgspec.to_builtins(report))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(masked), indent=2) + b"\n")


def load_report(path: Path) -> CheckReport:
    """Read what `save_report` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=CheckReport)
