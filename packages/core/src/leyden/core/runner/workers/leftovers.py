"""Cleanup of processes that agents started and left running, in any session or process group.

Reads `/proc`, so it works on Linux only.
"""

import contextlib
import os
import signal
import time

from leyden.core.runner.commands.supervise import children, descendants, kill

SECONDS = 2.0
"""Longest wait for killed processes to end, in seconds."""


def end_children() -> None:
    """Kill the children of this process until none is left.

    For a process that adopts orphans: killing a child makes the child's own children children of this process.
    """
    give_up = time.monotonic() + SECONDS
    while time.monotonic() < give_up and any([kill(child) for child in children()]):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def end_descendants() -> None:
    """Kill the descendants of this process outside its process group, and wait until they have ended.

    The parent process ends the group itself.
    """
    killed: list[int] = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != os.getpgrp():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    give_up = time.monotonic() + SECONDS
    while any(map(_runs, killed)) and time.monotonic() < give_up:
        time.sleep(0.001)


def _runs(pid: int) -> bool:
    """Whether a process has not ended; the system ends a killed one when it is scheduled next."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False
