"""`leyden models list` of runs whose folders were written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from leyden.core.cli.main import run
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile


def trained(runs: Path, name: str, experiment: str | None) -> None:
    """A run that has its first version."""
    config = RunConfig(name=name, experiment=experiment, agent="a", policy="p")
    folder = RunFolder.create(runs, config, [{"q": 1}], {})
    fields: dict[str, Any] = {"run": name, "created": 1.0, "algorithm": "lightning_rl", "seed": 0, "policy": "p"}
    VersionFile(folder.path).append(ModelVersion(version=0, parent=None, **fields))


def listed(capsys: pytest.CaptureFixture[str], runs: Path, *options: str) -> str:
    assert run(["models", "list", *options, "--runs", str(runs)]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_with_their_experiment_and_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, experiment in (("a", "rates"), ("b", None), ("c", "rates"), ("d", "sizes")):
        trained(tmp_path, name, experiment)
    rows = [json.loads(line) for line in listed(capsys, tmp_path, "--json").splitlines()]
    assert [(row["run"], row["experiment"]) for row in rows] == [
        ("a", "rates"),
        ("b", None),
        ("c", "rates"),
        ("d", "sizes"),
    ]
    rows = [json.loads(line) for line in listed(capsys, tmp_path, "--json", "--experiment", "rates").splitlines()]
    assert [row["run"] for row in rows] == ["a", "c"]
    shown = listed(capsys, tmp_path)
    assert "experiment" in shown and "sizes" in shown
    assert run(["models", "list", "--experiment", "seeds", "--runs", str(tmp_path)]) == 2
    assert "belongs to experiment 'seeds'; experiments there: rates, sizes\n" in capsys.readouterr().err
    assert run(["models", "list", "a", "--experiment", "rates", "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_without_experiments_are_listed_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, "a", None)
    assert "┃ run ┃ last ┃" in listed(capsys, tmp_path)
    assert run(["models", "list", "--experiment", "rates", "--runs", str(tmp_path)]) == 2
    assert "no run belongs to an experiment\n" in capsys.readouterr().err
