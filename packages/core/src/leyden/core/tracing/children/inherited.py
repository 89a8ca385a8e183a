"""What a child process of an agent takes along: routing, the attempt it works for, and who speaks in it.

`Carried` is pickled with what `multiprocessing` starts, and written into the environment of other programs, where
`start_hook` finds it in a child that is Python.
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
"""Environment variable; `start_hook` reads it, too."""
module_files: dict[str, str] = {}
"""The files of modules that were loaded under names of Leyden's making, which no other process could import."""


class CarriedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an `OpenAttempt` that another process needs."""

    rollout_id: str
    attempt_id: str
    token: str
    gateway_url: str
    trace_id: str
    mode: RolloutMode | None = None
    routes: tuple[Route, ...] = ()
    fail_open: bool = False


class CarriedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `Caller` that another process needs."""

    agent: str | None = None
    node: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What goes along."""

    fail_closed: bool
    attempt: CarriedAttempt | None = None
    caller: CarriedCaller = CarriedCaller()
    modules: dict[str, str] = {}
    """The file of each module that has a name of Leyden's making."""

    @classmethod
    def now(cls, *, empty: bool = False) -> "Carried":
        """What a process takes along that starts here and now; an `empty` one works for no attempt yet."""
        attempt = None if empty else current_attempt()
        return cls.of(attempt, current_caller() or Caller(), fail_closed=routing_decision.fails_closed())

    @classmethod
    def of(cls, attempt: OpenAttempt | None, caller: Caller, *, fail_closed: bool) -> "Carried":
        """What a process takes along that works for `attempt`."""
        fields, speaking = CarriedAttempt.__struct_fields__, CarriedCaller.__struct_fields__
        return cls(
            fail_closed=fail_closed,
            attempt=attempt and CarriedAttempt(**{name: getattr(attempt, name) for name in fields}),
            caller=CarriedCaller(**{name: getattr(caller, name) for name in speaking}),
            modules=dict(module_files),
        )

    def install(self) -> None:
        """Route this process's model calls, and let it import what its parent loaded."""
        from leyden.core.tracing import context_propagation
        from leyden.core.tracing.wire import routing

        find_modules(self.modules)
        context_propagation.install()
        routing.install(fail_closed=self.fail_closed)

    def opened(self) -> tuple[OpenAttempt, Caller, Callable[[], None]] | None:
        """The attempt as one of this process, who speaks in it, and what to call at its end; None without one."""
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
        """Work for the attempt inside the block."""
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


def join(carried: str) -> None:
    """Let this whole process work for the attempt that `carried` names, until it ends. Called once, at its start."""
    found = msgspec.json.decode(carried, type=Carried)
    found.install()
    working = found.opened()
    if working is not None:
        attempt, caller, end = working
        context.work_for(attempt, caller)
        atexit.register(end)


def find_modules(files: Mapping[str, str]) -> None:
    """Let this process import modules by the names that another process loaded their files under."""
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
    """Say that what was emitted here is lost: only the process that runs the attempt stores what is emitted."""
    if attempt.notes:
        log.warning(
            "%d notes (%s) were emitted in a child process of the agent and are not recorded: emit them in its own",
            len(attempt.notes),
            ", ".join(sorted({note.name for note in attempt.notes})),
        )
        attempt.notes.clear()


def unpickled(files: dict[str, str]) -> str:
    """What `FoundModules` is unpickled with."""
    find_modules(files)
    return "found"


class FoundModules:
    """What unpickles it can import the modules that this process loaded; it goes before anything of the agent's."""

    def __reduce__(self) -> Any:
        return unpickled, (dict(module_files),)
