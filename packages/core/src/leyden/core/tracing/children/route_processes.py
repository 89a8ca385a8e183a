"""Takes routing, and the attempt that is open, into the processes that `multiprocessing` starts.

A process belongs to the attempt that starts it; one of a pool belongs to none, and each piece of work it is given to
the attempt that gives it. Without this, a process that is started afresh would call providers.
"""

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from leyden.core.tracing.children.inherited import Carried, FoundModules
from leyden.core.tracing.context import current_attempt, is_outside
from leyden.core.tracing.wire import routing_decision

WRAPPED = {
    "multiprocessing.process": (("BaseProcess", "start"),),
    "multiprocessing.pool": tuple(("Pool", name) for name in ("apply_async", "_map_async", "imap", "imap_unordered")),
    "concurrent.futures.process": (("ProcessPoolExecutor", "submit"),),
    "multiprocessing.spawn": (("", "get_preparation_data"),),
}
POOLS = ("multiprocessing.pool", "concurrent.futures.process")
"""Whose processes work for many."""
OUR_OWN = "leyden.core."
"""How the names of Leyden's own programs begin: nothing of an agent's is in their main module."""


def wrap(library: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of the start of a process, of its preparation, or of giving work to a pool."""

    def start(self: Any) -> None:
        if not routing_decision.is_on() or is_outside():
            return original(self)
        fields = cast("dict[str, Any]", vars(self))
        own = dict(fields)
        fields["run"] = _Run(self, Carried.now(empty=_target_module(self) in POOLS), own.get("run"))
        try:
            return original(self)
        finally:
            del fields["run"]
            fields.update({"run": own["run"]} if "run" in own else {})

    def give(self: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        in_threads = getattr(library, "ThreadPool", ())
        if not routing_decision.is_on() or current_attempt() is None or isinstance(self, in_threads):
            return original(self, work, *args, **kwargs)
        return original(self, _Work(work, Carried.now()), *args, **kwargs)

    def get_preparation_data(name: str) -> dict[str, Any]:
        prepared = original(name)
        if prepared.get("init_main_from_name", "").startswith(OUR_OWN):
            del prepared["init_main_from_name"]
        return {"leyden": FoundModules(), **prepared}  # before all that is pickled of the process itself

    if name == "get_preparation_data":
        return get_preparation_data
    return start if name == "start" else give


@dataclass(frozen=True)
class _Work:
    """One piece of work for a pool's process."""

    work: Callable[..., Any]
    carried: Carried

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.carried.entered():
            return self.work(*args, **kwargs)


@dataclass(frozen=True)
class _Run:
    """Stands in for the process's own `run`, once, in the child."""

    process: Any
    carried: Carried
    own: Callable[[], None] | None
    """What somebody put on the process object itself."""

    def __call__(self) -> None:
        del self.process.run
        self.carried.install()
        Context().run(self._run)  # what a fork brought along belongs to its parent

    def _run(self) -> None:
        with self.carried.entered():
            (self.own or self.process.run)()


def _target_module(process: Any) -> str:
    return getattr(getattr(process, "_target", None), "__module__", "")
