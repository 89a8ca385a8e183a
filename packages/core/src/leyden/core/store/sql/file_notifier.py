"""`FileListener` and `notify`: notifications about a file between processes of one machine, through Linux's inotify.

A notification is a touch of the file, which changes only its times. No content is written or must be removed, even
where a process dies.
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
"""Linux's IN_ATTRIB: the times or permissions of a file have changed. A write alone is no such event."""
_PAUSE = 0.005
"""Seconds after a notification in which further ones are merged into one."""
_EVENTS = 64 << 10
"""Bytes of events that are read, and discarded, at once."""


def notify(path: Path) -> None:
    """Notify all processes that watch `path`; does nothing where the file is gone."""
    with suppress(OSError):
        os.utime(path)


class FileListener(ListeningThread):
    """Calls `on_touch` after each notification of any process, this one included, until `stop`.

    Calls it on a thread of its own. Raises OSError where there is no file, or where inotify is missing or exhausted.
    """

    def __init__(self, path: Path, on_touch: Callable[[], None]) -> None:
        self._on_touch = on_touch
        self._inotify = _inotify_of(path)
        super().__init__()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended."""
        super().stop()
        os.close(self._inotify)

    def _run(self) -> None:
        while True:
            readable, _, _ = select.select([self._inotify, self._stop_receiver], [], [])
            if self._stop_receiver in readable:
                return
            os.read(self._inotify, _EVENTS)
            self._on_touch()
            self._stopping.wait(_PAUSE)


def _inotify_of(path: Path) -> int:
    """Return a file descriptor that becomes readable when `path` is touched.

    The file itself is not opened, since closing it again could release SQLite's locks.
    """
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(descriptor, os.fsencode(path), ctypes.c_uint32(_ATTRIB)) < 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number), str(path))
    return descriptor
