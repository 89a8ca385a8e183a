"""Outages of a store: a call that must not be lost is repeated until the store works again."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from leyden.core.errors import StoreClosed, StoreError

T = TypeVar("T")

LONGEST_SECONDS = 60.0
"""Longest outage that an agent does not notice: half of the time that an attempt may take by default."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0

logger = logging.getLogger(__name__)


def is_outage(error: BaseException) -> bool:
    """Return whether `error` means that the store failed, so that the same call may succeed later.

    Other errors mean that a working store refused the call, or that this process has closed the store.
    """
    return isinstance(error, StoreError) and not isinstance(error, ValueError | StoreClosed)


async def through_outage(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`, which is repeated for `LONGEST_SECONDS` while the store fails.

    `call` must have the same effect when it is made twice: a store that failed may have made it. Raises other errors at
    once, and at the end the error of the store.
    """
    give_up, pause = time.monotonic() + LONGEST_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return await call()
        except StoreError as error:
            if not is_outage(error) or time.monotonic() + pause > give_up:
                raise
            if pause == _FIRST_PAUSE:
                logger.warning("the store failed; the call is repeated for %g s: %s", LONGEST_SECONDS, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
