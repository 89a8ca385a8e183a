"""The logging functions of Agent Lightning 0.3, over Leyden's `setup_logging`."""

import logging
from collections.abc import Mapping
from typing import Any

from leyden.core.agent_lightning.replaced import refuse
from leyden.core.trainer.monitoring.logs import LOGGER, setup_logging

_INSTEAD = "configure the logger 'leyden' with Python's logging.config"


def setup(
    level: int | str = "INFO", *, submodule_levels: Mapping[str, int | str] | None = None, **options: Any
) -> None:
    """Show the logs of `leyden` from `level` on. Raises ReplacedName for the original's other options."""
    if options:
        refuse(f"setup_logging({next(iter(options))}=)", _INSTEAD)
    setup_logging(level, submodule_levels=submodule_levels)


def setup_module(level: int | str = "INFO", *, name: str = LOGGER, **options: Any) -> logging.Logger:
    """Show the logs of the logger `name`, which is `leyden` or below it, from `level` on; return it."""
    if options:
        refuse(f"setup_module_logging({next(iter(options))}=)", _INSTEAD)
    if name.partition(".")[0] != LOGGER:
        refuse(f"setup_module_logging(name={name!r})", f"Leyden sets up its own loggers, {LOGGER!r} and those below it")
    if name == LOGGER:
        setup_logging(level)
    else:
        setup_logging(logging.getLogger(LOGGER).level or "INFO", submodule_levels={name: level})
    return logging.getLogger(name)


def configure_logger(level: int | str = logging.INFO, name: str = LOGGER) -> logging.Logger:
    """`setup_module` by its older name."""
    return setup_module(level, name=name)


__all__ = ["configure_logger", "setup", "setup_module"]
