"""`OnImport`: runs an instrumentor's change to a framework module once the application imports that module.

The instrumentor itself then imports nothing of its framework. An application that does not use it is not slowed down.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import wrapt

log = logging.getLogger("leyden.tracing")

Action = Callable[[Any], None]
"""Called with the imported module."""


class OnImport:
    """Runs each of `actions` once, when the module named by its key is imported, unless it is turned off before."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = dict(actions)
        self._enabled = True
        for name in actions:
            if name in sys.modules:
                self._run(sys.modules[name])  # the caller handles an error here
            else:
                wrapt.register_post_import_hook(self._imported, name)

    def off(self) -> None:
        """Run no further action."""
        self._enabled = False

    def _imported(self, module: Any) -> None:
        try:
            self._run(module)
        except Exception:  # broad: the application's import must continue
            log.exception("%s cannot be recorded", module.__name__)

    def _run(self, module: Any) -> None:
        action = self._actions.pop(module.__name__, None)
        if self._enabled and action is not None:
            action(module)
