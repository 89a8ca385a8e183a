"""What a process holds that a fork of it must not share: threads, which a fork ends, and open connections.

What the import of an installed library leaves behind does not count, but for threads of Python's own: libraries are
made to be imported before a fork. What is done with them afterwards is another matter.
"""

import builtins
import fcntl
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.runner.isolation.code_reading import is_library

_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")
_HARMLESS_THREADS = ("tqdm_monitor",)
"""Threads that nothing waits for."""
_LOOKS, _LOOK_AGAIN_SECONDS = 50, 0.005
"""How often a thread that ends is waited for."""
_WRITABLE = os.O_WRONLY | os.O_RDWR


class ForkHazards:
    """Make it before the agent's code is imported, and import that inside `watching`; then ask for `found`."""

    def __init__(self) -> None:
        self._native = _native_threads()
        self._descriptors = _open_descriptors()
        self._depth = 0

    @classmethod
    def of_this_process(cls) -> "ForkHazards":
        """For a process that has imported the agent long ago: all that it has opened itself counts.

        Threads of native libraries do not: which of them an import has started cannot be known any more.
        """
        hazards = cls()
        hazards._descriptors = {n: target for n, target in hazards._descriptors.items() if os.get_inheritable(n)}
        return hazards

    @contextmanager
    def watching(self) -> Generator[None]:
        """Take note, inside the block, of what the imports of libraries leave behind."""
        installed_adapters()  # `is_library` needs to know their frameworks, and must import nothing while it is called
        original = builtins.__import__

        def watched(name: str, globals: Any = None, *arguments: Any, **keywords: Any) -> Any:
            if self._depth or not _is_users(globals):
                return original(name, globals, *arguments, **keywords)
            return self._import(original, name, globals, *arguments, **keywords)

        builtins.__import__ = watched
        try:
            yield
        finally:
            if builtins.__import__ is watched:
                builtins.__import__ = original

    def _import(self, original: Any, *arguments: Any, **keywords: Any) -> Any:
        """Import a module that code of the user's names; that may be another module of the user's."""
        native, descriptors = _native_threads(), _open_descriptors()
        module = original(*arguments, **keywords)
        if _comes_from_library(module):
            self._native += _native_threads() - native
            self._descriptors |= {
                number: target for number, target in _open_descriptors().items() if number not in descriptors
            }
        return module

    def found(self) -> list[str]:
        """Say why a fork of this process would not be as good as a new one; empty where it would."""
        found: list[str] = []
        names = [thread.name for thread in _other_threads() if thread.name not in _HARMLESS_THREADS]
        count = max(self._native_that_stay(len(names)), len(names))
        if count > 0:
            shown = f" ({', '.join(names)})" if names else ""
            found.append(f"{count} thread{'s' * (count > 1)}{shown}")
        for number, target in sorted(_open_descriptors().items()):
            if self._descriptors.get(number) != target and _is_shared(number, target):
                found.append(_described(target))
        return list(dict.fromkeys(found))

    def _native_that_stay(self, pythons: int) -> int:
        """Threads that the system counts and that were not there before; `pythons` of them are threads of Python's own.

        The system goes on counting a thread for a moment after Python has joined it.
        """
        looks = 0  # not until a time: this process may be stopped meanwhile, and the thread with it
        while (count := _native_threads() - self._native) > pythons and looks < _LOOKS:
            looks += 1
            time.sleep(_LOOK_AGAIN_SECONDS)
        return count


def _is_users(globals: Any) -> bool:
    path: object = globals.get("__file__") if globals else None
    return isinstance(path, str) and not is_library(path)


def _comes_from_library(module: Any) -> bool:
    path = getattr(module, "__file__", None)
    return path is None or is_library(path)


def _other_threads() -> list[threading.Thread]:
    """Python's threads but this one.

    One that Python has not started (a library's, or `_thread`'s) stays in Python's list after its end; it has no frame.
    """
    running = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # there is no public way
    here = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not here and thread.ident in running]


def _native_threads() -> int:
    """Threads of this process, those of native libraries too where the system counts them."""
    if os.path.isdir("/proc/self/task"):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()


def _open_descriptors() -> dict[int, str]:
    """The open files of this process, each by its number; empty where the system does not list them."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own descriptor
            continue
    return found


def _is_shared(number: int, target: str) -> bool:
    """Whether processes would disturb each other by a descriptor: what reads a file, or adds to it, is harmless."""
    if target in _HARMLESS:
        return False
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError:  # closed meanwhile
        return False
    return not target.startswith("/") or bool(flags & _WRITABLE and not flags & os.O_APPEND)


def _described(target: str) -> str:
    if target.startswith("socket:"):
        return "an open connection"
    if target.startswith("anon_inode:"):
        return "an event loop"
    return "an open pipe" if target.startswith("pipe:") else f"{target}, open for writing"
