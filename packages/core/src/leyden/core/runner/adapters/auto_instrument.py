"""Instruments every installed adapter as soon as its framework is loaded: one agent may use several frameworks."""

import logging
import sys
from collections.abc import Callable
from threading import RLock
from types import ModuleType

import wrapt

from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.registry import installed_adapters

logger = logging.getLogger(__name__)

_lock = RLock()  # what is instrumented imports more of its framework, and that may be what a hook waits for
_runs = 0
_hooked: set[str] = set()
_recording: list[Adapter] = []
_waiting: list[Adapter] = []
"""Adapters whose framework is loaded and that could not be instrumented yet."""
_errors: dict[str, Exception] = {}
"""Why, by the adapters' names."""


def instrument_all(own: Adapter) -> Callable[[], None]:
    """Instrument `own`, and every other adapter once its framework is loaded; return what undoes it.

    A failure of `own` is raised. Another that fails is tried again before the next attempt; if it fails then too, that
    is logged, and its framework's calls have no structure.
    """
    global _runs
    own.instrument()
    with _lock:
        _runs += 1
        for adapter in installed_adapters():
            if adapter is not own and adapter.module is not None:
                _when_loaded(adapter, adapter.module)
    undone = False

    def undo() -> None:
        nonlocal undone
        if not undone:
            undone = True
            own.uninstrument()
            _stop()

    return undo


def try_again() -> None:
    """Instrument the adapters that could not be when their framework was loaded, as in the middle of another import.

    One that fails again is logged and left out.
    """
    if not _waiting:
        return
    with _lock:
        waiting = list(_waiting)
        _waiting.clear()
        for adapter in waiting:
            if _runs and adapter not in _recording and not _instrumented(adapter):
                logger.warning("adapter %r cannot record its framework", adapter.name, exc_info=_errors[adapter.name])


def _when_loaded(adapter: Adapter, module: str) -> None:
    def loaded(_module: ModuleType) -> None:
        with _lock:
            if _runs and adapter not in _recording and adapter not in _waiting and not _instrumented(adapter):
                logger.info("adapter %r is tried again: %r", adapter.name, _errors[adapter.name])
                _waiting.append(adapter)

    if module in sys.modules:
        loaded(sys.modules[module])
    elif module not in _hooked:  # a hook stays for good, and does nothing while no run records
        _hooked.add(module)
        wrapt.register_post_import_hook(loaded, module)


def _instrumented(adapter: Adapter) -> bool:
    _recording.append(adapter)  # before: what it imports may come back here
    try:
        adapter.instrument()
    except Exception as error:
        _recording.remove(adapter)
        _errors[adapter.name] = error
        return False
    return True


def _stop() -> None:
    global _runs
    with _lock:
        _runs -= 1
        if _runs:
            return
        _waiting.clear()
        while _recording:
            _recording.pop().uninstrument()
