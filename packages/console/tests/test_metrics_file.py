"""Metrics of a run that is being written."""

from pathlib import Path

from leyden.console.runs.metrics_file import MetricsFile


def test_lines_are_read_as_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    assert file.lines().lines == []

    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    generation = file.lines().generation
    assert [line["step"] for line in file.lines().lines] == [1, 2]

    with path.open("ab") as more:
        more.write(b'ep": 3}\n')
    found = file.lines()
    assert [line["step"] for line in found.lines] == [1, 2, 3]
    assert found.generation == generation


def test_a_rollback_begins_another_generation(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    file = MetricsFile(path)
    before = file.lines().generation

    other.write_bytes(b'{"step": 1}\n')
    other.replace(path)

    found = file.lines()
    assert [line["step"] for line in found.lines] == [1]
    assert found.generation != before


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"ste\x00\n[1]\n{"step": "x"}\n{}\n\xff\n{"step": 2}\n')

    found = MetricsFile(path).lines()

    assert [line["step"] for line in found.lines] == [1, 2]
    assert found.damage == f"{path}, line 2 cannot be read: it is no JSON object with a step"


def test_two_readers_have_generations_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    assert file.lines().generation == file.lines().generation, "without a file, nothing changes"

    path.write_bytes(b'{"step": 1}\n')
    assert file.lines().generation != MetricsFile(path).lines().generation
