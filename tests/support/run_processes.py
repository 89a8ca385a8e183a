"""Processes of runs that a command under test has started: wait for what they do, and kill them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from warm_process import Running

SECONDS = 300


def wait_until(is_so: Callable[[], bool], process: Running) -> None:
    """Wait until something is so, which happens while the command runs."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert process.returncode is None, process.ended(0)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_training(run: Path) -> None:
    """Kill the training of `run` outright, which goes on when the command that started it is killed.

    Returns after the end of its workers.
    """
    file = str(run.parent / f"records/{run.name}.yaml").encode()
    (training,) = [entry for entry in Path("/proc").glob("[0-9]*") if file in words(entry)]
    os.kill(int(training.name), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while file in words(training) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)  # the workers end by themselves


def words(process: Path) -> list[bytes]:
    """The command line of a process; empty if it has ended."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
