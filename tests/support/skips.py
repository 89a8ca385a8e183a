"""A pytest plugin that ends the run's summary with what was skipped, grouped by reason."""

from collections import defaultdict
from typing import Any, cast

import pytest

MOST_FILES = 5
"""Files named for each reason."""


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason with its tests' count and files, or that nothing was skipped."""
    terminalreporter.section("skipped")
    lines = skipped_lines(terminalreporter.stats.get("skipped", []))
    for line in lines or ["nothing skipped"]:
        terminalreporter.write_line(line)


def skipped_lines(reports: "list[pytest.TestReport | pytest.CollectReport]") -> list[str]:
    """One line a reason, the most frequent first."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in reports:
        by_reason[_reason_of(report)].append(report.nodeid.partition("::")[0])
    ordered = sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [f"{len(files)} × {reason} ({_named(files)})" for reason, files in ordered]


def _reason_of(report: "pytest.TestReport | pytest.CollectReport") -> str:
    found = cast("tuple[Any, ...] | str", report.longrepr)
    reason = str(found[2] if isinstance(found, tuple) else found)  # of a skipped test: file, line, reason
    return reason.removeprefix("Skipped: ").strip() or "no reason given"


def _named(files: list[str]) -> str:
    names = sorted(set(files))
    more = [f"and {len(names) - MOST_FILES} more files"] if len(names) > MOST_FILES else []
    return ", ".join([*names[:MOST_FILES], *more])
