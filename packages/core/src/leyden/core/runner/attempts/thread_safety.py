"""Thread safety of first uses: imports and builds ahead of time what libraries defer to their first use.

These errors appear only when rollouts run concurrently. Python may end an import with a deadlock error when many
threads begin it at once and the modules import each other. When two threads build the same deferred pydantic model, the
second removes what the first has built.
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
"""Longest wait of a thread for its turn to build a model.

The limit matters when the thread that builds waits for something that this thread holds.
"""

logger = logging.getLogger(__name__)


def prepare_first_use() -> Callable[[], None]:
    """Import the deferred modules of loaded libraries, and let one thread at a time build pydantic models.

    Returns a function that undoes the second.
    """
    _import_late_parts()
    if "pydantic" not in sys.modules:
        return lambda: None
    return _build_one_at_a_time(sys.modules["pydantic"].BaseModel)


def _import_late_parts() -> None:
    """Import the modules of `LATE` whose library is loaded. A version without such a module is skipped."""
    for name in LATE:
        if name.partition(".")[0] in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:
                logger.debug("%s cannot be imported in advance", name, exc_info=True)


def _build_one_at_a_time(base: Any) -> Callable[[], None]:
    """Serialize `model_rebuild`. A later thread finds the model complete and does nothing."""
    original: Any = base.__dict__.get("model_rebuild")
    if original is None:  # pydantic 1 builds a model with its class
        return lambda: None
    building = threading.RLock()

    def model_rebuild(cls: Any, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
        held = building.acquire(timeout=PATIENCE_SECONDS)
        try:
            # pydantic looks up names in a caller's frame, this many calls up the stack. This wrapper adds one call.
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
