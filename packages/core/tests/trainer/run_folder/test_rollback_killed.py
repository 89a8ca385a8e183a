"""Killed with SIGKILL before each one of its writes, a rollback has not happened or has; so with a run being made."""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import whole_folder
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.rollback import roll_back
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

CONFIG = RunConfig(name="r", agent="a", policy="p")
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
Tree = dict[str, bytes]


def is_write(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event of Python's is about to change something on the disk."""
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in WRITES


def killed_before(write: int, work: Callable[[], object]) -> bool:
    """Do `work` in a process that is killed before its write number `write`; False if it ended before that."""

    def child() -> None:
        left = write

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if is_write(event, arguments):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def killed_everywhere(work: Callable[[], object], before: Callable[[], object]) -> Iterator[int]:
    """Do `before`, then `work` killed before one write after the other, until it ends by itself."""
    write = 0
    before()
    while killed_before(write, work):
        yield write
        write += 1
        before()


def tree(folder: Path) -> Tree:
    """What lies below `folder`: files and what they hold, folders; without the lock."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.name != "run.lock"}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in found.items()}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a finished run of four steps."""
    folder = RunFolder.create(tmp_path / "made", CONFIG, [{"q": 1}], {})
    versions = VersionFile(folder.path)
    for number in range(5):
        checkpoint = folder.checkpoints / f"step-{number:08d}"
        if number:
            checkpoint.mkdir(parents=True)
            (checkpoint / "model.safetensors").write_text(f"weights {number}")
            (checkpoint / "progress.json").write_text(json.dumps({"step": number}))
            folder.append_metrics({"step": number, "reward": number / 10})
        fields: dict[str, Any] = {"created": 1.0, "algorithm": "sft", "seed": 0, "policy": "p"}
        weights = f"checkpoints/{checkpoint.name}" if number else None
        versions.append(ModelVersion(run="r", version=number, parent=number - 1 or None, weights=weights, **fields))
    folder.policy.mkdir()
    (folder.policy / "model.safetensors").write_text("weights 4")
    folder.write_report(RunReport(name="r", seed=0))
    return folder.path


def test_a_rollback_killed_at_any_write_has_happened_or_has_not(trained: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run = runs / "r"

    def again() -> None:
        shutil.rmtree(runs, ignore_errors=True)
        shutil.copytree(trained, run)

    def back() -> None:
        models = Models.open(runs, "r")
        roll_back(models, models.find("2"))

    def opened() -> Tree:
        """The run as whoever works with it next finds it."""
        models = Models.open(runs, "r")
        with models.folder.locked():
            found = tree(run)
        last = 2 if "set_aside/1" in found else 4
        assert (models.last, len(models.folder.metrics())) == (last, last)
        assert ("report.json" in found, "policy" in found) == (last == 4, last == 4)
        return found

    again()
    old = opened()
    back()
    new = opened()
    assert new != old

    found = [opened() for _ in killed_everywhere(back, again)]

    assert len(found) > 20
    happened = [state == new for state in found]
    assert all(state in (old, new) or set(state) - set(old) == {"set_aside"} for state in found)
    assert happened == sorted(happened), "once it has happened, it has"
    assert {True, False} == set(happened)


def test_a_rollback_whose_end_is_killed_too_is_ended_by_the_next(trained: Path, tmp_path: Path) -> None:
    runs, half = tmp_path / "runs", tmp_path / "half"

    def back() -> None:
        models = Models.open(half, "r")
        roll_back(models, models.find("2"))

    shutil.copytree(trained, half / "r")
    write = 0
    while not list((half / "r").glob("set_aside/1/moves.json")):
        shutil.rmtree(half)
        shutil.copytree(trained, half / "r")
        assert killed_before(write, back)
        write += 1

    def again() -> None:
        shutil.rmtree(runs, ignore_errors=True)
        shutil.copytree(half, runs)

    again()
    RunFolder.open(runs, "r")
    new = tree(runs / "r")
    kills = 0
    for _ in killed_everywhere(lambda: RunFolder.open(runs, "r"), again):
        RunFolder.open(runs, "r")
        assert tree(runs / "r") == new
        kills += 1
    assert kills > 8


def test_a_run_killed_while_it_is_made_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    other = RunConfig(name="other", agent="a", policy="p")
    left = 0
    for _ in killed_everywhere(
        lambda: RunFolder.create(runs, CONFIG, [{"q": 1}], {"val": [{"q": 2}]}),
        lambda: shutil.rmtree(runs, ignore_errors=True),
    ):
        left += any(runs.glob(".writing-*"))
        RunFolder.create(runs, other, [{"q": 1}], {})
        assert {path.name for path in runs.iterdir()} <= {"other", "r"}
        if (runs / "r").exists():
            assert RunFolder.open(runs, "r")[0].tasks("val") == [{"q": 2}]
    assert left > 3


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "exported") as pending:
        RunFolder.create(tmp_path, CONFIG, [{"q": 1}], {})
        assert pending.exists()
    assert (tmp_path / "exported").is_dir()


def test_a_run_that_another_process_has_is_read_as_it_is(trained: Path, tmp_path: Path) -> None:
    aside = trained / "set_aside" / "1"
    aside.mkdir(parents=True)
    (aside / "moves.json").write_text(json.dumps([["report.json", "set_aside/1/report.json"]]))
    with (trained / "run.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        RunFolder.open(trained.parent, "r")
        assert (trained / "report.json").exists()
        with pytest.raises(RunError, match="another process"), RunFolder(trained).locked():
            raise AssertionError("locked twice")
    RunFolder.open(trained.parent, "r")
    assert not (trained / "report.json").exists()
