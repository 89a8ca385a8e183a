"""Fork servers of a worker: one with the agent loaded or, where a fork of that is unsafe, one without it.

A fork inherits memory, but not threads, and open connections break when two processes use them. A process that has
imported the agent is therefore forked only if the import left none of these behind. Otherwise each rollout's process
imports the agent itself, forked from a server that has imported only libraries.
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
"""Time limit for finding out what can be imported before a fork. Rollouts import the rest themselves."""


class Processes:
    """Creates a worker's fork server. Make this object before the agent is loaded, then call `keep` or `discard`."""

    def __init__(self, load: Load, close: Callable[[], None] = lambda: None) -> None:
        """`load` loads the agent. `close` releases what a forked process must not hold."""
        self._load, self._close = load, close
        self._modules = set(sys.modules)
        self._early_server = ForkServer.fork(lambda connection: serve_attempt(connection, load), close, import_safely)
        self._hazards = ForkHazards()
        self.imports_again: str | None = None
        """Reason why each process imports the agent itself. None where it does not."""

    def load(self) -> LoadedAgent:
        """Load the agent in this process and return it."""
        with self._hazards.watching():
            return self._load()

    def keep(self, loaded: LoadedAgent) -> ForkServer:
        """Return a server that forks a process for each rollout of `loaded`, the result of `load`."""
        hazards = self._hazards.found()
        if hazards:
            self.imports_again = ", ".join(hazards)
            self._early_server.prepare(libraries_loaded_since(self._modules))
            return self._early_server
        self.discard()
        return ForkServer.fork(lambda connection: serve_attempt(connection, lambda: loaded), self._close, import_safely)

    def open_resources(self) -> str:
        """Return what the agent's import left behind that a fork would harm, as text. Empty: nothing."""
        return ", ".join(self._hazards.found())

    def discard(self) -> None:
        """End the server that was forked before the agent was loaded."""
        self._early_server.end()


def import_safely(names: list[str]) -> None:
    """Import those of `names` whose import starts no Python thread.

    Trial processes find these names, because a started thread cannot be undone. Each trial process imports names up to
    the first that starts a thread. The next one continues after that name.
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
    """Write each name whose import was harmless. Stops at the first whose import was not."""
    try:
        for name in names:
            _import(name)
            if threading.active_count() > 1:
                break
            os.write(writing, f"{name}\n".encode())
    finally:
        os._exit(0)


def _import(name: str) -> None:
    with contextlib.suppress(BaseException):  # some parts of a library can be imported only by the library
        importlib.import_module(name)
