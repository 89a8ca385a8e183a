"""The logging functions of Agent Lightning 0.3, over Leyden's `setup_logging`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from leyden.core.agent_lightning.replaced import refuse
from leyden.core.trainer.monitoring.logs import LOGGER, setup_logging

ORIGINAL = "agentlightning"
"""The original's own logger, which nothing in Leyden writes to."""
_INSTEAD = "configure the logger 'leyden' with Python's logging.config"


def setup(
    level: int | str = "INFO",
    *,
    submodule_levels: Mapping[str, int | str] | None = None,
    apply_to: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Show the logs of `leyden`, and those of the loggers `apply_to`, from `level` on.

    Raises ReplacedName for the original's other options.
    """
    if options:
        refuse(f"setup_logging({next(iter(options))}=)", _INSTEAD)
    setup_logging(level, submodule_levels=submodule_levels)
    for name in apply_to or ():
        _show(name, level)


def setup_module(level: int | str = "INFO", *, name: str = LOGGER, **options: Any) -> logging.Logger:
    """Show the logs of the logger `name` from `level` on; return it. It may be a program's own, such as `__name__`."""
    if options:
        refuse(f"setup_module_logging({next(iter(options))}=)", _INSTEAD)
    if name.partition(".")[0] == ORIGINAL:
        refuse(f"setup_module_logging(name={name!r})", f"Leyden's loggers are {LOGGER!r} and those below it")
    if name == LOGGER:
        setup_logging(level)
    elif name.partition(".")[0] == LOGGER:
        setup_logging(logging.getLogger(LOGGER).level or "INFO", submodule_levels={name: level})
    else:
        setup_logging(logging.getLogger(LOGGER).level or "INFO")
        _show(name, level)
    return logging.getLogger(name)


def configure_logger(level: int | str = logging.INFO, name: str = LOGGER) -> logging.Logger:
    """`setup_module` by its older name."""
    return setup_module(level, name=name)


def _show(name: str, level: int | str) -> None:
    """Give another logger the handlers of `leyden` in place of its own, so that each of its records is shown once."""
    logger = logging.getLogger(name)
    logger.handlers[:] = logging.getLogger(LOGGER).handlers
    logger.setLevel(level)
    logger.propagate = False


__all__ = ["configure_logger", "setup", "setup_module"]
