"""`watched`: looks whether all parts of VERL's queue live, since VERL waits for a dead one without a word.

Looks at names alone; knows nothing of Ray, nor of what a part does.
"""

import logging
import threading
from collections.abc import Callable, Generator, Set
from contextlib import contextmanager

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""
ENOUGH = 2
"""Looks in a row at which a part has to be missing: one may come in the middle of something."""


@contextmanager
def watched(there: Callable[[], Set[str]], lost: Callable[[list[str]], None], every: float = EVERY) -> Generator[None]:
    """Call `lost` once, in a thread, with the names that `there` gave at the beginning and gives no more.

    What keeps `there` from answering is no sign that something is lost.
    """
    expected, done = there(), threading.Event()

    def look() -> None:
        missing = dict.fromkeys(expected, 0)
        while not done.wait(every):
            try:
                found = there()
            except Exception as error:
                log.warning("whether VERL's queue lives cannot be told now: %s", error)
                continue
            for name in missing:
                missing[name] = 0 if name in found else missing[name] + 1
            if gone := sorted(name for name, looks in missing.items() if looks >= ENOUGH):
                lost(gone)
                return

    thread = threading.Thread(target=look, name="leyden watch of VERL's queue", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(every)
