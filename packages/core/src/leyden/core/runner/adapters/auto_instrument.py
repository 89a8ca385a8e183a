"""Automatic instrumentation: instruments every installed adapter as soon as its framework is loaded.

One agent may use several frameworks.
"""

import logging
import sys
from collections.abc import Callable
from threading import RLock
from types import ModuleType

import wrapt

from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.registry import installed_adapters

logger = logging.getLogger(__name__)

_lock = RLock()  # reentrant: instrumenting imports parts of the framework, which may fire these import hooks
_runs = 0
_hooked: set[str] = set()
_recording: list[Adapter] = []
_waiting: list[Adapter] = []
"""Adapters with a loaded framework that could not be instrumented yet."""
_errors: dict[str, Exception] = {}
"""Last error of each such adapter, by the adapter's name."""


def instrument_all(own: Adapter) -> Callable[[], None]:
    """Instrument `own` now, and every other adapter once its framework is loaded. Returns a function that undoes this.

    Raises the error of `own`. Another adapter that fails is retried before the next attempt. If it fails again, that is
    logged, and its framework's calls are recorded without structure.
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
    """Retry adapters that could not be instrumented when their framework was loaded, as during another import.

    An adapter that fails again is logged and left out.
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
                logger.info(
                    "adapter %r could not be instrumented and will be retried: %r", adapter.name, _errors[adapter.name]
                )
                _waiting.append(adapter)

    if module in sys.modules:
        loaded(sys.modules[module])
    elif module not in _hooked:  # a hook cannot be removed; it does nothing while no run records
        _hooked.add(module)
        wrapt.register_post_import_hook(loaded, module)


def _instrumented(adapter: Adapter) -> bool:
    _recording.append(adapter)  # first: the framework's imports may call this again
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
