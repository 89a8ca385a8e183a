"""`quietly`: decorator for callbacks inside an agent's process, whose failures must not become the agent's."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

log = logging.getLogger("leyden.tracing")

P = ParamSpec("P")


def quietly(callback: Callable[P, None]) -> Callable[P, None]:
    """Return `callback` with its exceptions logged instead of raised."""

    @wraps(callback)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception:
            log.exception("%s could not be recorded", callback.__qualname__)

    return call
