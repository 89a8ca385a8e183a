"""State that a child process inherits from an agent: routing, the attempt that it belongs to, and the caller in it.

`InheritedState` is pickled with processes that `multiprocessing` starts. It is also written into the environment of
other programs, where `start_hook` finds it in a Python child.
"""

import atexit
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import msgspec

from leyden.core.data.rollout import RolloutMode
from leyden.core.data.route import Route
from leyden.core.tracing import context
from leyden.core.tracing.context import Caller, OpenAttempt, current_attempt, current_caller, open_attempt, set_caller
from leyden.core.tracing.wire import routing_decision

log = logging.getLogger("leyden.routing")

ENVIRONMENT = "LEYDEN_CARRIED"
"""Environment variable that holds a `InheritedState`. `start_hook` reads it too."""
module_files: dict[str, str] = {}
"""Files of modules that were loaded under names that Leyden generated. No other process could import these names."""


class InheritedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an `OpenAttempt` that another process needs."""

    rollout_id: str
    attempt_id: str
    token: str
    gateway_url: str
    trace_id: str
    mode: RolloutMode | None = None
    routes: tuple[Route, ...] = ()
    fail_open: bool = False


class InheritedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `Caller` that another process needs."""

    agent: str | None = None
    node: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class InheritedState(msgspec.Struct, frozen=True, kw_only=True):
    """State for a child process."""

    fail_closed: bool
    attempt: InheritedAttempt | None = None
    caller: InheritedCaller = InheritedCaller()
    modules: dict[str, str] = {}
    """Files of modules with generated names, by name."""

    @classmethod
    def now(cls, *, empty: bool = False) -> "InheritedState":
        """Return the state for a child process that starts now. With `empty`, the child belongs to no attempt yet."""
        attempt = None if empty else current_attempt()
        return cls.of(attempt, current_caller() or Caller(), fail_closed=routing_decision.fails_closed())

    @classmethod
    def of(cls, attempt: OpenAttempt | None, caller: Caller, *, fail_closed: bool) -> "InheritedState":
        """Return the state for a child process that belongs to `attempt`."""
        attempt_fields, caller_fields = InheritedAttempt.__struct_fields__, InheritedCaller.__struct_fields__
        return cls(
            fail_closed=fail_closed,
            attempt=attempt and InheritedAttempt(**{name: getattr(attempt, name) for name in attempt_fields}),
            caller=InheritedCaller(**{name: getattr(caller, name) for name in caller_fields}),
            modules=dict(module_files),
        )

    def install(self) -> None:
        """Start routing in this process, and let it import the modules that its parent loaded."""
        from leyden.core.tracing import context_propagation
        from leyden.core.tracing.wire import routing

        find_modules(self.modules)
        context_propagation.install()
        routing.install(fail_closed=self.fail_closed)

    def opened(self) -> tuple[OpenAttempt, Caller, Callable[[], None]] | None:
        """Return the attempt as an object of this process, its caller, and a function to call at the end.

        None where there is no attempt.
        """
        if self.attempt is None:
            return None
        fields, caller = msgspec.structs.asdict(self.attempt), Caller(**msgspec.structs.asdict(self.caller))
        if self.attempt.fail_open:
            from leyden.core.tracing.production import capture

            attempt, send = capture.in_child(fields)
            return attempt, caller, send
        attempt = OpenAttempt(**fields)
        return attempt, caller, partial(_warn_of_notes, attempt)

    @contextmanager
    def entered(self) -> Generator[None]:
        """Let the block belong to the attempt. Without an attempt, run the block unchanged."""
        found = self.opened()
        if found is None:
            yield
            return
        attempt, caller, end = found
        try:
            with open_attempt(attempt):
                set_caller(caller)
                yield
        finally:
            end()


def join(encoded: str) -> None:
    """Let this whole process belong to the attempt in `encoded`, until its end. Called once, at the process's start."""
    state = msgspec.json.decode(encoded, type=InheritedState)
    state.install()
    opened = state.opened()
    if opened is not None:
        attempt, caller, end = opened
        context.set_process_attempt(attempt, caller)
        atexit.register(end)


def find_modules(files: Mapping[str, str]) -> None:
    """Let this process import modules by the names under which another process loaded their files."""
    if files:
        module_files.update(files)
        sys.meta_path.insert(0, _Finder(files))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else importlib.util.spec_from_file_location(fullname, file)


def _warn_of_notes(attempt: OpenAttempt) -> None:
    """Warn that spans emitted in this process are lost. Only the process that runs the attempt stores emitted spans."""
    if attempt.notes:
        log.warning(
            "%d notes (%s) were emitted in a child process of the agent and are not recorded: emit them in the "
            "agent's process",
            len(attempt.notes),
            ", ".join(sorted({note.name for note in attempt.notes})),
        )
        attempt.notes.clear()


def unpickled(files: dict[str, str]) -> str:
    """Function with which `FoundModules` is unpickled."""
    find_modules(files)
    return "found"


class FoundModules:
    """Object whose unpickling lets a process import the modules that this process loaded.

    It must be unpickled before any of the agent's objects.
    """

    def __reduce__(self) -> Any:
        return unpickled, (dict(module_files),)
