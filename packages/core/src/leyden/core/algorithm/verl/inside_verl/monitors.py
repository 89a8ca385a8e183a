"""Monitors: check regularly, in threads, for problems in which VERL would wait without any message.

These are lost parts of its queue, and missing capacity in Ray. The checks themselves are passed in by the caller.
"""

import logging
import threading
from collections.abc import Callable, Generator, Set
from contextlib import AbstractContextManager, contextmanager

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two checks of the queue."""
ENOUGH = 2
"""Consecutive checks at which a part must be missing, because a single check may happen during a change."""
EVERY_GROUP = 20.0
"""Seconds between two checks for missing capacity; a problem is reported if both find it."""


def watched(
    there: Callable[[], Set[str]], lost: Callable[[list[str]], None], every: float = EVERY
) -> AbstractContextManager[None]:
    """Inside the block, call `lost` once, in a thread, with the names in `there()` that disappeared.

    The names to watch are those that `there` returns at the beginning. An exception in `there` does not count as a
    loss.
    """
    missing = dict.fromkeys(there(), 0)

    def look() -> bool:
        found = there()
        for name in missing:
            missing[name] = 0 if name in found else missing[name] + 1
        if gone := sorted(name for name, looks in missing.items() if looks >= ENOUGH):
            lost(gone)
        return bool(gone)

    return _repeated(look, every, "whether VERL's queue lives")


def told_of(
    see: Callable[[], str | None], tell: Callable[[str], None], every: float = EVERY_GROUP
) -> AbstractContextManager[None]:
    """Inside the block, call `tell`, in a thread, with a text that `see` returned twice in a row.

    A text is not repeated while it stays the same.
    """
    before: str | None = None
    told: str | None = None

    def look() -> bool:
        nonlocal before, told
        seen = see()
        if seen is not None and seen == before and seen != told:
            tell(seen)
            told = seen
        before = seen
        return False

    return _repeated(look, every, "what VERL waits for")


@contextmanager
def _repeated(look: Callable[[], bool], every: float, what: str) -> Generator[None]:
    """Call `look` in a thread until the block ends, or until it returns True."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every):
            try:
                if look():
                    return
            except Exception as error:
                log.warning("%s cannot be told now: %s", what, error)

    thread = threading.Thread(target=watch, name=f"leyden watch: {what}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(every)
