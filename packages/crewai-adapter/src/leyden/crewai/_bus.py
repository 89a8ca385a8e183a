"""Event bus hook: receives CrewAI's events in the context of the code that emits them.

The bus calls its handlers on other threads, in a copy of the context: a handler cannot set what a model call reads, and
usually runs too late. So `emit` is wrapped, on the bus's class, from the bus's import on.
"""

import sys
from collections.abc import Callable
from functools import wraps
from threading import Lock
from types import ModuleType
from typing import Any

from opentelemetry.trace import TracerProvider

from leyden.crewai import _runs

BUS = "crewai.events.event_bus"


class Listener:
    """A listener; of several, the latest one's provider gets the spans."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self.provider = provider


_lock = Lock()
_listeners: tuple[Listener, ...] = ()
_wrapped: tuple[Callable[..., Any], Callable[..., Any]] | None = None
"""The original `emit`, and the wrapper in its place."""
_hooked = False


def listen(provider: TracerProvider | None) -> Listener:
    """Record runs, from the import of CrewAI on if it is not imported yet."""
    global _listeners, _hooked
    listener = Listener(provider)
    with _lock:
        _listeners = (*_listeners, listener)
        must_hook, _hooked = not _hooked, True
        if BUS in sys.modules:
            _wrap(sys.modules[BUS])
    if must_hook:
        import wrapt

        wrapt.register_post_import_hook(_on_import, BUS)
    return listener


def stop_listening(listener: Listener) -> None:
    """Undo one `listen`; the last call restores `emit` and ends what still runs."""
    global _listeners
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if _listeners:
            return
        if BUS in sys.modules:
            _unwrap(sys.modules[BUS])
    _runs.end_all()


def _on_import(module: ModuleType) -> None:
    with _lock:
        if _listeners:
            _wrap(module)


def _wrap(module: Any) -> None:
    global _wrapped
    if _wrapped is None:
        emit = module.CrewAIEventsBus.emit
        wrapper = module.CrewAIEventsBus.emit = _recording_emit(emit)
        _wrapped = emit, wrapper


def _unwrap(module: Any) -> None:
    global _wrapped
    if _wrapped is not None and module.CrewAIEventsBus.emit is _wrapped[1]:
        module.CrewAIEventsBus.emit = _wrapped[0]
        _wrapped = None  # else other code wrapped this wrapper, which stays and records nothing


def _recording_emit(emit: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(emit)
    def wrapper(bus: Any, source: Any, event: Any) -> Any:
        # Starts come before the bus's handlers, so that their context copy has the caller; ends come after.
        if listeners := _listeners:
            _runs.begin(source, event, listeners[-1].provider)
        result = emit(bus, source, event)
        if listeners:
            _runs.end(source, event)
        return result

    return wrapper
