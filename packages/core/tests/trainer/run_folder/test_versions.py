from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import RunError
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile


def version(number: int, **fields: Any) -> ModelVersion:
    values: dict[str, Any] = {"run": "r", "created": 1.0, "algorithm": "lightning_rl", "seed": 0, "policy": "p"}
    parent = number - 1 if number else None
    return ModelVersion(version=number, parent=parent, **(values | fields))


def checkpoint(folder: Path, name: str) -> str:
    (folder / name).mkdir(parents=True)
    (folder / name / "progress.json").write_text("{}")
    return name


def test_what_was_appended_last_is_read(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    assert file.read() == {}
    held_out = {"val": Evaluation(success=0.5, rewards={"0": 1.0, "1": 0.0})}
    for kept in (version(0), version(2), version(1), version(2, held_out=held_out, metrics={"reward": 0.25})):
        file.append(kept)
    assert list(file.read()) == [0, 1, 2]
    assert file.read()[2] == version(2, held_out=held_out, metrics={"reward": 0.25})


def test_a_set_without_any_reward_is_read_back(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    file.append(version(0, held_out={"val": Evaluation(success=None)}))
    assert file.read()[0].held_out["val"].success is None


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    file.append(version(0))
    with file.path.open("ab") as opened:
        opened.write(b'{"run":"r","vers')
    assert list(file.read()) == [0]


def test_a_line_that_is_no_version_is_named(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    file.append(version(0))
    with file.path.open("ab") as opened:
        opened.write(b'{"run":"r"}\n')
    with pytest.raises(RunError, match=r"versions.jsonl, line 2 cannot be read"):
        file.read()


def test_weights_are_named_only_where_a_whole_checkpoint_is(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    there = checkpoint(tmp_path, "checkpoints/step-00000002")
    (tmp_path / "checkpoints/step-00000003").mkdir()
    file.append(version(1, weights="checkpoints/step-00000001"))
    file.append(version(2, weights=there))
    file.append(version(3, weights="checkpoints/step-00000003"))
    assert [found.weights for found in file.read().values()] == [None, there, None]


def test_rewinding_forgets_what_came_after_and_returns_it(tmp_path: Path) -> None:
    file = VersionFile(tmp_path)
    for number in (0, 1, 2, 3):
        file.append(version(number))
    assert [found.version for found in file.rewind(1)] == [2, 3]
    assert list(file.read()) == [0, 1]
    assert file.rewind(1) == []
    file.append(version(2, created=2.0))
    assert file.read()[2].created == 2.0
