"""Failures of Leyden itself inside an attempt: separates them from the agent's and converts them to a `Failure`."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from leyden.core.data.failure import Failure
from leyden.core.data.plain.own_methods import short_name
from leyden.core.errors import LeydenError, StoreError, UsageError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.attempts.annotations import text_of

logger = logging.getLogger(__name__)
_INSTALLED = "leyden."


class OwnFailure(LeydenError):
    """Leyden failed while it ran an attempt. `cause` is the original exception."""

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(f"{what}: {described(cause)}")
        self.cause = cause


@contextmanager
def own_work(what: str, *but: type[BaseException]) -> Generator[None]:
    """Raise OwnFailure, whose message begins with `what`, for an exception of the block.

    A UsageError passes through, because the user can correct its cause. Exceptions of the classes `but` pass through
    too.
    """
    try:
        yield
    except (UsageError, OwnFailure, *but):
        raise
    except Exception as error:  # broad: any other exception here comes from Leyden's own code
        raise OwnFailure(what, error) from error


def own_failure(what: str, error: BaseException) -> Failure:
    """Return the failure of an attempt in which `error` prevented `what`."""
    cause = error.cause if isinstance(error, OwnFailure) else error
    message = text_of(error) if isinstance(error, OwnFailure) else f"{what}: {described(error)}"
    return Failure(kind="leyden", type=short_name(cause), message=message)


def log_own_failure(rollout_id: str, error: BaseException) -> None:
    """Log an error of Leyden's own, with its traceback.

    A StoreError is logged without one: its message is enough, and dozens may come at once.
    """
    trace = None if isinstance(error, StoreError) else error
    logger.error("Leyden failed in rollout %s%s", rollout_id, f": {error}" if trace is None else "", exc_info=trace)


def described(error: BaseException) -> str:
    """Return an exception's message. The class comes first unless the error is one of Leyden's own."""
    text = text_of(error)
    if isinstance(error, LeydenError) and text:
        return text
    return f"{short_name(error)}: {text}" if text else short_name(error)


def raised_by_adapter(error: BaseException, adapter: Adapter) -> bool:
    """Return whether the adapter's own code raised `error` while it ran the agent, according to the traceback.

    A TypeError does not count: Python raises the error for an agent's wrong arguments in the caller's frame.
    """
    if isinstance(error, LeydenError | TypeError) or not isinstance(error, Exception):
        return False
    module = _raised_in(error.__traceback__)
    own = type(adapter).__module__
    return module == own or (own.startswith(_INSTALLED) and _package(module) == _package(own) != "leyden.core")


def _raised_in(traceback: TracebackType | None) -> str:
    """Return the name of the module that raised the exception."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__", ""))


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])
