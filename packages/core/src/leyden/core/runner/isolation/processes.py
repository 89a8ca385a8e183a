"""The processes that rollouts are forked from: one with the agent loaded, or, where that is unsafe, one without.

A fork takes along what a process holds in memory, but neither its threads nor, unharmed, its connections. So a process
that has imported the agent is forked only if the import left none of these behind; else each rollout's process
imports the agent itself, from one that has imported nothing but the libraries.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from leyden.core.runner.isolation.code_reading import libraries_loaded_since
from leyden.core.runner.isolation.fork_hazards import ForkHazards
from leyden.core.runner.isolation.fork_server import ForkServer
from leyden.core.runner.isolation.forked_agent import Load, serve_attempt
from leyden.core.runner.user_code.loaded_agent import LoadedAgent

TRIAL_SECONDS = 10.0
"""How long it is looked for what can be imported before a fork; rollouts import the rest themselves."""


class Processes:
    """Make it before the agent is loaded; then call `keep` or `discard`."""

    def __init__(self, load: Load, close: Callable[[], None] = lambda: None) -> None:
        """`load` loads the agent; `close` releases what a forked process must not hold."""
        self._load, self._close = load, close
        self._modules = set(sys.modules)
        self._empty = ForkServer.fork(lambda connection: serve_attempt(connection, load), close, import_safely)
        self._hazards = ForkHazards()
        self.imports_again: str | None = None
        """Why each process imports the agent itself; None where it does not."""

    def load(self) -> LoadedAgent:
        """Load the agent in this process."""
        with self._hazards.watching():
            return self._load()

    def keep(self, loaded: LoadedAgent) -> ForkServer:
        """Return a server that forks a process for each rollout of `loaded`, which `load` has returned."""
        hazards = self._hazards.found()
        if hazards:
            self.imports_again = ", ".join(hazards)
            self._empty.prepare(libraries_loaded_since(self._modules))
            return self._empty
        self.discard()
        return ForkServer.fork(lambda connection: serve_attempt(connection, lambda: loaded), self._close, import_safely)

    def left_open(self) -> str:
        """What the agent's import left behind that a fork would harm, in words; empty where it left nothing."""
        return ", ".join(self._hazards.found())

    def discard(self) -> None:
        """End what is not needed."""
        self._empty.end()


def import_safely(names: list[str]) -> None:
    """Import those of `names` whose import starts no thread of Python's.

    Which those are is found out in processes of their own: a thread that has started cannot be taken back. One such
    process goes as far as the first name that starts one; the next goes on behind it.
    """
    give_up, left = time.monotonic() + TRIAL_SECONDS, names
    while left and time.monotonic() < give_up:
        safe = _safe_ones(left)
        for name in safe:
            _import(name)
        culprit, left = left[len(safe)] if len(safe) < len(left) else "", left[len(safe) + 1 :]
        left = [name for name in left if not name.startswith(f"{culprit}.")]


def _safe_ones(names: list[str]) -> list[str]:
    """Return the first of `names`, up to the one whose import starts a thread or ends the process."""
    reading, writing = os.pipe()
    trial = os.fork()
    if trial == 0:
        os.close(reading)
        _try_imports(names, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        safe = pipe.read().decode().split()
    os.waitpid(trial, 0)
    return safe


def _try_imports(names: list[str], writing: int) -> NoReturn:
    """Write the names whose import was harmless, up to the first one's that was not."""
    try:
        for name in names:
            _import(name)
            if threading.active_count() > 1:
                break
            os.write(writing, f"{name}\n".encode())
    finally:
        os._exit(0)


def _import(name: str) -> None:
    with contextlib.suppress(BaseException):  # a part of a library that only the library itself can import
        importlib.import_module(name)
