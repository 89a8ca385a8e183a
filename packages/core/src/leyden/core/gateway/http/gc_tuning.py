"""Python's garbage collector while a run serves its agents. Knows nothing of servers.

Every call makes some hundred objects, few of them in cycles. With Python's own threshold each few calls start a
collection, and now and then one of the whole heap, which a loaded model library makes large: an eighth of the gateway's
time.
"""

import gc
from threading import Lock

THRESHOLD = (20_000, 20, 20)

_lock = Lock()
_before: list[tuple[tuple[int, int, int], bool]] = []
"""Thresholds that were found, and whether something was set aside, for each user of `calm`; first the process's own."""


def calm() -> None:
    """Set aside what exists, and collect less often, until `restore` was called as often as this."""
    with _lock:
        _before.append((gc.get_threshold(), gc.get_freeze_count() > 0))
        if len(_before) == 1:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*THRESHOLD)


def restore() -> None:
    """Put the collector back as the first `calm` found it, unless somebody has set it meanwhile.

    Where the process had set something aside itself, all stays aside: Python can bring back all or nothing.
    """
    with _lock:
        threshold, was_frozen = _before.pop()
        if not _before:
            if gc.get_threshold() == THRESHOLD:
                gc.set_threshold(*threshold)
            if not was_frozen:
                gc.unfreeze()
