"""`FileBell`: processes of one machine ring at a file, and hear each other, through Linux's inotify.

To ring is to touch the file: nothing is written to it, nothing has to be cleared away, and who has died owes nothing.
Knows nothing of what the file holds, or of what is rung for.
"""

import ctypes
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leyden.core.store.common.listening import ListeningThread

_ATTRIB = 0x4
"""Linux's IN_ATTRIB: a file's times, or who may open it, have changed. Writing to a file alone is not told."""
_PAUSE = 0.005
"""Seconds after a ring in which further ones are heard as one."""
_EVENTS = 64 << 10
"""Bytes of events that are read, and thrown away, at once."""


def ring(path: Path) -> None:
    """Let all who listen at `path` hear; a file that is gone has nobody who does."""
    with suppress(OSError):
        os.utime(path)


class FileBell(ListeningThread):
    """Calls `heard`, on a thread of its own, whenever anybody rings, this process included, until it is stopped.

    Raises OSError where there is no file, or where this system cannot tell: it has no inotify, or all are taken.
    """

    def __init__(self, path: Path, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._told = _watch(path)
        super().__init__()

    def stop(self) -> None:
        """Stop, and return when it has."""
        super().stop()
        os.close(self._told)

    def _run(self) -> None:
        while True:
            readable, _, _ = select.select([self._told, self._theirs], [], [])
            if self._theirs in readable:
                return
            os.read(self._told, _EVENTS)
            self._heard()
            self._stopping.wait(_PAUSE)


def _watch(path: Path) -> int:
    """Return a file descriptor that can be read once `path` has been touched. Opens no other: that may break locks."""
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    libc = ctypes.CDLL(None, use_errno=True)
    told: int = libc.inotify_init1(os.O_CLOEXEC)
    if told < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(told, os.fsencode(path), ctypes.c_uint32(_ATTRIB)) < 0:
        number = ctypes.get_errno()
        os.close(told)
        raise OSError(number, os.strerror(number), str(path))
    return told
