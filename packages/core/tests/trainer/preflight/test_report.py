import io
from pathlib import Path

from rich.console import Console

from leyden.core.trainer.preflight.report import (
    CheckReport,
    check_table,
    failure,
    load_report,
    ok,
    save_report,
    unchecked,
    warning,
    worst_first,
)

WRONG = CheckReport(
    results=(
        ok("memory", "enough"),
        warning("prompts", "long", "shorten them"),
        failure("rewards", "none of 4 rollouts has a reward", "give one"),
        unchecked("spread", "see rewards"),
    ),
    rollouts=4,
    seconds=3.0,
    rollout_seconds=2.0,
)


def test_nothing_is_proven_while_something_was_not_looked_at() -> None:
    assert not CheckReport(results=(ok("a", ""), unchecked("b", ""))).proven
    assert CheckReport(results=(ok("a", ""), warning("b", "", ""))).proven
    assert not WRONG.proven


def test_what_is_wrong_is_said_with_what_to_change() -> None:
    assert WRONG.complaint().splitlines()[1:] == ["  rewards: none of 4 rollouts has a reward. give one"]
    assert [result.name for result in worst_first(WRONG.results)] == ["rewards", "prompts"]
    assert WRONG.summary() == "check: 1 ok, 1 warning, 1 failure, 1 unchecked (4 rollouts in 2.0 s, the rest in 1.0 s)"


def test_the_table_shows_every_check() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(check_table(WRONG))
    shown = console.export_text()
    assert all(result.name in shown and result.status in shown for result in WRONG.results)
    assert "give one" in shown


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_report(WRONG, tmp_path / "check.json")
    assert load_report(tmp_path / "check.json") == WRONG
