"""Routing for child processes that `multiprocessing` starts: they inherit routing and the open attempt.

A process belongs to the attempt that starts it. A pool's process belongs to no attempt; each of its work items belongs
to the attempt that submits it. Without this, a spawned process would call providers.
"""

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from leyden.core.tracing.children.inherited import FoundModules, InheritedState
from leyden.core.tracing.context import current_attempt, is_outside
from leyden.core.tracing.wire import routing_decision

WRAPPED = {
    "multiprocessing.process": (("BaseProcess", "start"),),
    "multiprocessing.pool": tuple(("Pool", name) for name in ("apply_async", "_map_async", "imap", "imap_unordered")),
    "concurrent.futures.process": (("ProcessPoolExecutor", "submit"),),
    "multiprocessing.spawn": (("", "get_preparation_data"),),
}
POOLS = ("multiprocessing.pool", "concurrent.futures.process")
"""Modules of pools, whose processes serve many attempts."""
OUR_OWN = "leyden.core."
"""Prefix of the names of Leyden's own programs. Their main modules contain nothing of an agent."""


def wrap(library: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of a process's start, of its preparation, or of a pool's submission."""

    def start(self: Any) -> None:
        if not routing_decision.is_on() or is_outside():
            return original(self)
        fields = cast("dict[str, Any]", vars(self))
        own = dict(fields)
        fields["run"] = _Run(self, InheritedState.now(empty=_target_module(self) in POOLS), own.get("run"))
        try:
            return original(self)
        finally:
            del fields["run"]
            fields.update({"run": own["run"]} if "run" in own else {})

    def submit(self: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        in_threads = getattr(library, "ThreadPool", ())
        if not routing_decision.is_on() or current_attempt() is None or isinstance(self, in_threads):
            return original(self, work, *args, **kwargs)
        return original(self, _PoolCall(work, InheritedState.now()), *args, **kwargs)

    def get_preparation_data(name: str) -> dict[str, Any]:
        prepared = original(name)
        if prepared.get("init_main_from_name", "").startswith(OUR_OWN):
            del prepared["init_main_from_name"]
        return {"leyden": FoundModules(), **prepared}  # first: before any pickled part of the process itself

    if name == "get_preparation_data":
        return get_preparation_data
    return start if name == "start" else submit


@dataclass(frozen=True)
class _PoolCall:
    """One work item for a pool's process."""

    work: Callable[..., Any]
    state: InheritedState

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.state.entered():
            return self.work(*args, **kwargs)


@dataclass(frozen=True)
class _Run:
    """Replaces the process's own `run` in the child, for one call."""

    process: Any
    state: InheritedState
    own: Callable[[], None] | None
    """A `run` that was set on the process object itself."""

    def __call__(self) -> None:
        del self.process.run
        self.state.install()
        Context().run(self._run)  # the forked context belongs to the parent

    def _run(self) -> None:
        with self.state.entered():
            (self.own or self.process.run)()


def _target_module(process: Any) -> str:
    return getattr(getattr(process, "_target", None), "__module__", "")
