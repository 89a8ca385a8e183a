"""Monitors: check regularly, in threads, for problems in which VERL would wait without any message.

These are lost parts of its queue, and missing capacity in Ray. The checks themselves are passed in by the caller.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two checks of the queue."""
ENOUGH = 2
"""Consecutive checks at which a part must be missing, because a single check may happen during a change."""
ERROR_WAIT = 2.0
"""Longest time, in seconds, from an error because of a lost part until Ray reports the loss."""
EVERY_GROUP = 20.0
"""Seconds between two checks for missing capacity; a problem is reported if both find it."""
QUEUE = "VERL's queue"
Resources = Mapping[str, float]
COUNTED = ("CPU", "GPU")
"""Resources whose numbers in the cluster are reported."""


@contextmanager
def watch_parts(
    live_parts: Callable[[], Set[str]],
    on_lost: Callable[[list[str]], None],
    every: float = EVERY,
    error_wait: float = ERROR_WAIT,
) -> Generator[Callable[[], list[str]]]:
    """Inside the block, call `on_lost` once, in a thread, with the names in `live_parts()` that disappeared.

    The names to watch are those that `live_parts` returns at the beginning. An exception in `live_parts` does not count
    as a loss. The block gets a function for use after an error that a loss may have caused: it checks for up to
    `error_wait` seconds, since the error may arrive before the loss is known, and returns the names that disappeared.
    """
    missing = dict.fromkeys(live_parts(), 0)

    def gone_now() -> list[str]:
        return sorted(missing.keys() - live_parts())

    def check() -> bool:
        gone = gone_now()
        for name in missing:
            missing[name] = missing[name] + 1 if name in gone else 0
        if lost := sorted(name for name, count in missing.items() if count >= ENOUGH):
            on_lost(lost)
        return bool(lost)

    def gone_after_error() -> list[str]:
        deadline = time.monotonic() + error_wait
        try:
            while not (gone := gone_now()) and time.monotonic() < deadline:
                time.sleep(error_wait / 10)
        except Exception as error:
            log.warning("could not check %s: %s", QUEUE, error)
            return []
        return gone

    with _repeated(check, every, QUEUE):
        yield gone_after_error


def report_repeated(
    find: Callable[[], str | None], on_found: Callable[[str], None], every: float = EVERY_GROUP
) -> AbstractContextManager[None]:
    """Inside the block, call `on_found`, in a thread, with a text that `find` returned twice in a row.

    A text is not repeated while it stays the same.
    """
    previous: str | None = None
    reported: str | None = None

    def check() -> bool:
        nonlocal previous, reported
        text = find()
        if text is not None and text == previous and text != reported:
            on_found(text)
            reported = text
        previous = text
        return False

    return _repeated(check, every, "the resources that VERL waits for")


@contextmanager
def _repeated(check: Callable[[], bool], every: float, what: str) -> Generator[None]:
    """Call `check` in a thread until the block ends, or until it returns True."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(every):
            try:
                if check():
                    return
            except Exception as error:
                log.warning("could not check %s: %s", what, error)

    thread = threading.Thread(target=run, name=f"leyden watch: {what}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(every)


def missing_capacity(groups: Sequence[Sequence[Resources]], free: Resources, whole: Resources) -> str | None:
    """Return a message about what VERL waits for; None if it waits for nothing.

    VERL requests bundles of processors and GPUs from Ray, one for each of its processes, and waits without a limit.
    `groups` holds the bundles of each group that has no room. `free` is the unused part of the cluster's resources
    `whole`.
    """
    if not groups:
        return None
    asked = Counter(_listed(bundle) for bundles in groups for bundle in bundles)
    wanted = ", ".join(f"{count} × ({bundle})" for bundle, count in sorted(asked.items()))
    has = ", ".join(f"{name} {free.get(name, 0.0):g} of {whole.get(name, 0.0):g}" for name in COUNTED)
    return (
        f"VERL waits for free resources in the Ray cluster: it requests {wanted}, with each group on one node; free: "
        f"{has}"
    )


def _listed(bundle: Resources) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(bundle.items()))
