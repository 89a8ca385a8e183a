"""Fork hazards: finds what a fork of this process must not inherit, such as threads and open connections.

A fork does not copy threads. Resources that the import of an installed library leaves open do not count, because
libraries are made to be imported before a fork. Two cases do count: threads that Python itself lists, and whatever user
code does with a library afterwards.
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
"""Threads that no other code waits for."""
_LOOKS, _LOOK_AGAIN_SECONDS = 50, 0.005
"""Number and interval of the checks for a thread that is ending."""
_WRITABLE = os.O_WRONLY | os.O_RDWR


class ForkHazards:
    """Detector of fork hazards.

    Create it before the agent's code is imported, import the agent inside `watching`, then call `found`.
    """

    def __init__(self) -> None:
        self._native = _native_threads()
        self._descriptors = _open_descriptors()
        self._depth = 0

    @classmethod
    def of_this_process(cls) -> "ForkHazards":
        """Return a detector for a process that imported the agent earlier.

        All descriptors that the process itself opened count.

        Threads of native libraries do not count: an import's own threads can no longer be identified.
        """
        hazards = cls()
        hazards._descriptors = {n: target for n, target in hazards._descriptors.items() if os.get_inheritable(n)}
        return hazards

    @contextmanager
    def watching(self) -> Generator[None]:
        """Record, inside the block, what imports of libraries leave behind."""
        installed_adapters()  # `is_library` needs the frameworks, and must import nothing while it runs
        original = builtins.__import__

        def recording_import(name: str, globals: Any = None, *arguments: Any, **keywords: Any) -> Any:
            if self._depth or not _is_users(globals):
                return original(name, globals, *arguments, **keywords)
            return self._import(original, name, globals, *arguments, **keywords)

        builtins.__import__ = recording_import
        try:
            yield
        finally:
            if builtins.__import__ is recording_import:
                builtins.__import__ = original

    def _import(self, original: Any, *arguments: Any, **keywords: Any) -> Any:
        """Import a module for user code. The module may itself be user code."""
        native, descriptors = _native_threads(), _open_descriptors()
        module = original(*arguments, **keywords)
        if _comes_from_library(module):
            self._native += _native_threads() - native
            self._descriptors |= {
                number: target for number, target in _open_descriptors().items() if number not in descriptors
            }
        return module

    def found(self) -> list[str]:
        """Return descriptions of what makes a fork of this process unsafe. Empty where a fork is safe."""
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
        """Return the number of threads that the system counts and that are new. `pythons` of them are Python's own.

        The system counts a thread for a moment after Python has joined it, so the count is repeated.
        """
        looks = 0  # no deadline: this process and its threads may be paused meanwhile
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
    """Return Python's running threads except this one.

    A thread that a library or `_thread` started stays in Python's list after its end, but has no frame.
    """
    running = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # there is no public way
    here = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not here and thread.ident in running]


def _native_threads() -> int:
    """Return the number of threads of this process but the harmless ones.

    Includes threads of native libraries where the system counts them.
    """
    harmless = sum(thread.name in _HARMLESS_THREADS for thread in _other_threads())
    if os.path.isdir("/proc/self/task"):
        return len(os.listdir("/proc/self/task")) - harmless
    return threading.active_count() - harmless


def _open_descriptors() -> dict[int, str]:
    """Return the targets of open descriptors by number. Empty where the system does not list them."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _is_shared(number: int, target: str) -> bool:
    """Return whether forked processes would interfere through a descriptor.

    A file that is only read, or only appended to, is harmless.
    """
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
