"""Imports what a client library leaves for its first call, before an agent's rollouts make that call all at once.

Python may end an import that many threads begin at once with a deadlock error, when the modules import each other. An
agent that its author ran once at a time has never met it.
"""

import importlib
import logging
import sys

LATE = ("openai.resources.chat", "openai.resources.responses")
"""Modules that a loaded library imports at its first call."""

logger = logging.getLogger(__name__)


def import_late_parts() -> None:
    """Import what is left of the libraries that are loaded; a version that has no such part is left as it is."""
    for name in LATE:
        if name.partition(".")[0] in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:
                logger.debug("%s cannot be imported beforehand", name, exc_info=True)
