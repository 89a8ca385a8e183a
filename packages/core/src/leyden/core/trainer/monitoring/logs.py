"""`setup_logging`: shows Leyden's logs in a program that has set up no logging of its own."""

import logging
from collections.abc import Mapping

from leyden.core.masking import mask_own_logs

LOGGER = "leyden"
_FORMAT = "%(asctime)s [%(levelname)s] (%(process)d %(name)s) %(message)s"


def setup_logging(level: int | str = "INFO", *, submodule_levels: Mapping[str, int | str] | None = None) -> None:
    """Write the logs of `leyden` from `level` on to standard error, with secrets masked; a second call changes levels.

    `submodule_levels` are further levels by the name of a logger, such as `leyden.core.gateway`.
    """
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        mask_own_logs()
        handler = _Handler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(level)
    for name, own in (submodule_levels or {}).items():
        logging.getLogger(name).setLevel(own)


class _Handler(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]  # writes to standard error
    """Handler of `setup_logging`."""
