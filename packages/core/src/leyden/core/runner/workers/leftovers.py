"""Ends what agents have started and left behind, in whatever session or process group it is. On Linux, by `/proc`."""

import contextlib
import os
import signal
import time

from leyden.core.runner.commands.supervise import children, kill

SECONDS = 2.0
"""How long processes that were killed may take to be gone."""


def end_children() -> None:
    """Kill our children, and those that become ours by that, until none is left; for one who adopts orphans."""
    give_up = time.monotonic() + SECONDS
    while time.monotonic() < give_up and any([kill(child) for child in children()]):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def end_descendants() -> None:
    """Kill what descends from this process and has left its group, which its parent ends; children first."""
    left, found = [os.getpid()], list[int]()
    parents = _parents()
    while left:
        parent = left.pop(0)
        below = [pid for pid, of in parents.items() if of == parent]
        left += below
        found += below
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != os.getpgrp():
                os.kill(pid, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """The parent of every process, as far as `/proc` tells."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{entry}/stat", "rb") as file:
                found[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
    return found
