"""Registry of installed adapters, found by the entry-point group `leyden.adapters`."""

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.base import Adapter

GROUP = "leyden.adapters"

logger = logging.getLogger(__name__)


@cache
def installed_adapters() -> tuple[Adapter, ...]:
    """Return one instance of every installed adapter, ordered by name.

    An adapter that cannot load is logged and left out.
    """
    found = (_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))
    return tuple(adapter for adapter in found if adapter is not None)


def installed_adapter(name: str) -> Adapter:
    """Return the installed adapter `name`.

    Raises UnknownAgent, which names the package to install, when it is missing.
    """
    for adapter in installed_adapters():
        if adapter.name == name:
            return adapter
    raise UnknownAgent(f"adapter {name!r} is not installed: pip install leyden-{name.replace('_', '-')}")


def supporting(agent: object) -> Adapter | None:
    """Return the first installed adapter, by name, that supports `agent`. None if there is none."""
    return next((adapter for adapter in installed_adapters() if supports(adapter, agent)), None)


def supports(adapter: Adapter, agent: object) -> bool:
    """Return whether `adapter` supports `agent`. An error of the adapter is logged and counts as no."""
    try:
        return adapter.supports(agent)
    except Exception:
        logger.warning(
            "adapter %r failed to check whether it supports a %s", adapter.name, type(agent).__name__, exc_info=True
        )
        return False


def _load(entry: EntryPoint) -> Adapter | None:
    try:
        adapter = entry.load()()
    except Exception:
        logger.warning("adapter %r (%s) cannot be loaded and is not used", entry.name, entry.value, exc_info=True)
        return None
    if not isinstance(adapter, Adapter):
        logger.warning("adapter %r (%s) is not a leyden Adapter and is not used", entry.name, entry.value)
        return None
    return adapter
