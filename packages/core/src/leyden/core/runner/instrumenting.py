"""Has every installed adapter record as soon as its framework is loaded: one agent may use several frameworks.

Knows none of them by name.
"""

import logging
import sys
from collections.abc import Callable
from threading import RLock
from types import ModuleType

import wrapt

from leyden.core.runner.adapter import Adapter
from leyden.core.runner.registry import installed_adapters

logger = logging.getLogger(__name__)

_lock = RLock()  # what is instrumented imports more of its framework, and that may be what a hook waits for
_runs = 0
_hooked: set[str] = set()
_recording: list[Adapter] = []


def instrument_all(own: Adapter) -> Callable[[], None]:
    """Instrument `own`, and every other adapter once its framework is loaded; return what undoes it.

    A failure of `own` is raised; that of another is logged, and its framework's calls have no structure.
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


def _when_loaded(adapter: Adapter, module: str) -> None:
    def loaded(_module: ModuleType) -> None:
        with _lock:
            if not _runs or adapter in _recording:
                return
            _recording.append(adapter)
            try:
                adapter.instrument()
            except Exception:
                logger.warning("adapter %r cannot record its framework", adapter.name, exc_info=True)

    if module in sys.modules:
        loaded(sys.modules[module])
    elif module not in _hooked:  # a hook stays for good, and asks whether anybody still records
        _hooked.add(module)
        wrapt.register_post_import_hook(loaded, module)


def _stop() -> None:
    global _runs
    with _lock:
        _runs -= 1
        if _runs:
            return
        while _recording:
            _recording.pop().uninstrument()
