"""Adapters that are installed, by the entry-point group `leyden.adapters`. Knows none of them by name."""

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.base import Adapter

GROUP = "leyden.adapters"

logger = logging.getLogger(__name__)


@cache
def installed_adapters() -> tuple[Adapter, ...]:
    """One instance of every installed adapter, ordered by name; one that cannot load is logged and left out."""
    found = (_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))
    return tuple(adapter for adapter in found if adapter is not None)


def installed_adapter(name: str) -> Adapter:
    """The installed adapter called `name`; raises UnknownAgent, saying what to install, when it is missing."""
    for adapter in installed_adapters():
        if adapter.name == name:
            return adapter
    raise UnknownAgent(f"no adapter {name!r} is installed: its package is leyden-{name.replace('_', '-')}")


def supporting(agent: object) -> Adapter | None:
    """The first installed adapter, by name, whose framework's own object `agent` is; None if there is none."""
    return next((adapter for adapter in installed_adapters() if supports(adapter, agent)), None)


def supports(adapter: Adapter, agent: object) -> bool:
    """Whether `adapter` supports `agent`; one that fails to say is logged, and does not."""
    try:
        return adapter.supports(agent)
    except Exception:
        logger.warning("adapter %r failed to look at a %s", adapter.name, type(agent).__name__, exc_info=True)
        return False


def _load(entry: EntryPoint) -> Adapter | None:
    try:
        adapter = entry.load()()
    except Exception:
        logger.warning("adapter %r (%s) cannot be loaded and is left out", entry.name, entry.value, exc_info=True)
        return None
    if not isinstance(adapter, Adapter):
        logger.warning("adapter %r (%s) is not a leyden Adapter and is left out", entry.name, entry.value)
        return None
    return adapter
