"""Makes safe what libraries leave for their first use, before an agent's rollouts come to it all at once.

An agent that its author ran once at a time has never met these errors: Python may end an import that many threads begin
at once with a deadlock error, when the modules import each other, and of two threads that build the same deferred model
of pydantic the second takes away what the first has made.
"""

import importlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

LATE = ("openai.resources.chat", "openai.resources.responses")
"""Modules that a loaded library imports at its first call."""
PATIENCE_SECONDS = 30.0
"""How long a thread waits to build a model, should the one before it wait for something that this thread holds."""

logger = logging.getLogger(__name__)


def prepare_first_use() -> Callable[[], None]:
    """Import what is left of the libraries that are loaded, and have models built one at a time; return its undoing."""
    _import_late_parts()
    if "pydantic" not in sys.modules:
        return lambda: None
    return _build_one_at_a_time(sys.modules["pydantic"].BaseModel)


def _import_late_parts() -> None:
    """A version that has no such part is left as it is."""
    for name in LATE:
        if name.partition(".")[0] in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:
                logger.debug("%s cannot be imported beforehand", name, exc_info=True)


def _build_one_at_a_time(base: Any) -> Callable[[], None]:
    """Let one thread at a time into `model_rebuild`, which finds nothing to do in a model that is complete by then."""
    original: Any = base.__dict__.get("model_rebuild")
    if original is None:  # pydantic 1 builds with the class
        return lambda: None
    building = threading.RLock()

    def model_rebuild(cls: Any, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
        held = building.acquire(timeout=PATIENCE_SECONDS)
        try:
            # Names are looked up in the caller's frame, so many calls up the stack: this one adds a call.
            depth = _parent_namespace_depth + 1 if _parent_namespace_depth > 0 else _parent_namespace_depth
            return original.__func__(cls, _parent_namespace_depth=depth, **options)
        finally:
            if held:
                building.release()

    model_rebuild.__doc__ = original.__doc__
    base.model_rebuild = classmethod(model_rebuild)

    def undo() -> None:
        base.model_rebuild = original

    return undo
