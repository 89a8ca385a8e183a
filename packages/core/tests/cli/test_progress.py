"""Progress of a command, as a program that started it reads it."""

import json

import pytest

from leyden.core.cli.progress import progress


def test_a_program_reads_a_line_for_each_part_with_its_phase(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEYDEN_PROGRESS", "json")

    with progress("scored", quiet=True) as report:
        report(1, 2)
        report(1, 8, "2 of 2: the other reward")

    lines = [json.loads(line)["progress"] for line in capsys.readouterr().err.splitlines()]
    assert lines == [{"done": 1, "total": 2}, {"done": 1, "total": 8, "phase": "2 of 2: the other reward"}]


def test_a_quiet_command_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("scored", quiet=True) as report:
        report(1, 2, "first")

    assert capsys.readouterr().err == ""
