"""The lock of a run, and stopping the process that has it."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from leyden.core.cli.main import run as leyden
from leyden.core.errors import RunError
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import Holder, is_locked, lock_holder, run_lock
from leyden.core.trainer.run_folder.stop import stop_run

HOLDS = """
import signal, sys, time
from pathlib import Path
from leyden.core.trainer.run_folder.run_lock import run_lock
signal.signal(signal.SIGTERM, (lambda *_: None) if sys.argv[2] == "stays" else (lambda *_: sys.exit(0)))
with run_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    while True:
        time.sleep(0.05)
"""


@contextmanager
def training(folder: Path, kind: str = "ends") -> Generator["subprocess.Popen[str]"]:
    """A process that has the lock of a run, and ends at SIGTERM unless `kind` is "stays"."""
    command = [sys.executable, "-c", HOLDS, str(folder), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def test_the_lock_names_its_process_while_it_is_held(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with run_lock(tmp_path):
        holder = lock_holder(tmp_path)
        assert holder is not None
        assert (holder.pid, holder.is_here()) == (os.getpid(), True)
        with pytest.raises(RunError, match="is being trained by another process"), run_lock(tmp_path):
            pass
        assert lock_holder(tmp_path) == holder
    assert (is_locked(tmp_path), lock_holder(tmp_path)) == (False, None)


@pytest.mark.integration
def test_a_run_is_stopped_and_can_be_locked_again(tmp_path: Path) -> None:
    waited: list[int] = []
    with training(tmp_path) as process:
        stop_run(RunFolder(tmp_path), 30, waited.append)

        assert (process.wait(10), waited) == (0, [process.pid])
    with run_lock(tmp_path):
        pass


@pytest.mark.integration
def test_a_process_that_does_not_end_is_reported_and_not_killed(tmp_path: Path) -> None:
    with training(tmp_path, "stays") as process:
        with pytest.raises(RunError, match=f"process {process.pid} has not ended 0.3 s after SIGTERM"):
            stop_run(RunFolder(tmp_path), 0.3)
        assert process.poll() is None


def test_a_run_that_is_not_trained_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no process trains run"):
        stop_run(RunFolder(tmp_path), 1)


def test_a_run_of_another_machine_or_an_older_version_is_not_stopped(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        (tmp_path / "run.lock").write_bytes(msgspec.json.encode(Holder(1, "another-machine")))
        with pytest.raises(RunError, match="trained by process 1 of another-machine: stop it there"):
            stop_run(RunFolder(tmp_path), 1)
        (tmp_path / "run.lock").write_bytes(b"")
        with pytest.raises(RunError, match="does not name the process"):
            stop_run(RunFolder(tmp_path), 1)


@pytest.mark.integration
def test_the_command_stops_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: one\npolicy: some-policy\ntasks: tasks.jsonl\nagent: a.py:b\n")
    with training(folder) as process:
        assert leyden(["stop", "one", "--runs", str(tmp_path)]) == 0
        assert process.wait(10) == 0

    out, err = capsys.readouterr()
    assert out == f"run one is stopped; continue with: leyden train --resume one --runs {tmp_path}\n"
    assert err == f"waiting until process {process.pid} has ended\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert leyden(["stop", "one", "--runs", str(tmp_path)]) == 2
    assert "no process trains run 'one'" in capsys.readouterr().err
