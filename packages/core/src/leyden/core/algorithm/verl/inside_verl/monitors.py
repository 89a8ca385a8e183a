"""Looks, again and again beside VERL's own work, at what it waits for in silence: parts of its queue, and room in Ray.

Knows nothing of Ray, nor of what is looked at.
"""

import logging
import threading
from collections.abc import Callable, Generator, Set
from contextlib import AbstractContextManager, contextmanager

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at the queue."""
ENOUGH = 2
"""Looks in a row at which a part has to be missing: one may come in the middle of something."""
EVERY_GROUP = 20.0
"""Seconds between two looks at what there is no room for; what is seen at both is told of."""


def watched(
    there: Callable[[], Set[str]], lost: Callable[[list[str]], None], every: float = EVERY
) -> AbstractContextManager[None]:
    """Call `lost` once, in a thread, with the names that `there` gives now and no more inside the block.

    What keeps `there` from answering is no sign that something is lost.
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
    """Inside the block, `tell` in a thread what two looks in a row see, once as long as it is the same."""
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
    """Call `look` in a thread until the block ends, or there is no more to look for."""
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
