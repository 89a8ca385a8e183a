"""`OnImport`: what an instrumentor does to a module of its framework, once the application imports that module.

So an instrumentor loads nothing of its framework: an application that does not use the framework is not slowed down.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import wrapt

log = logging.getLogger("leyden.tracing")

Action = Callable[[Any], None]
"""Takes the module, which is imported by then."""


class OnImport:
    """Runs each of `actions` once, when the module that it stands under is imported, unless it is off by then."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = dict(actions)
        self._on = True
        for name in actions:
            if name in sys.modules:
                self._run(sys.modules[name])  # what fails here is the caller's to know
            else:
                wrapt.register_post_import_hook(self._imported, name)

    def off(self) -> None:
        """Run nothing more."""
        self._on = False

    def _imported(self, module: Any) -> None:
        try:
            self._run(module)
        except Exception:  # whatever it is, the application's import goes on
            log.exception("%s cannot be recorded", module.__name__)

    def _run(self, module: Any) -> None:
        action = self._actions.pop(module.__name__, None)
        if self._on and action is not None:
            action(module)
