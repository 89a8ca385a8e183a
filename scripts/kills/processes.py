"""Finding and ending processes that a campaign has started, and no others. Linux only: it reads `/proc`."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = "LEYDEN_KILL_CAMPAIGN"
"""Names the campaign's folder in the environment of everything that it starts, and of what those start."""


def marked(folder: Path) -> list[int]:
    """Processes that live and were started by the campaign in `folder`, or by something it started."""
    mark = f"{ENVIRONMENT}={folder}".encode()
    return [pid for pid in _all() if mark in _read(pid, "environ").split(b"\0") and is_alive(pid)]


def workers(driver: int) -> list[int]:
    """The agent processes of a run's driver."""
    return [
        pid for pid in _children(driver) if b"leyden.core.runner.workers.worker" in _read(pid, "cmdline").split(b"\0")
    ]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


def kill(pid: int) -> bool:
    """`kill -9`; False when it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait_until(holds: Callable[[], object], seconds: float) -> bool:
    """Look again and again whether something holds; False when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in _read(parent, f"task/{parent}/children").split()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
