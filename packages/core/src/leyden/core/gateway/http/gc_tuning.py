"""Garbage collector tuning: reduces the cost of Python's garbage collection while a run serves its agents.

Every call creates some hundred objects, few of them in cycles. With Python's default threshold, every few calls start a
collection, and some of these collect the whole heap. The heap is large, because model libraries are loaded. This took
an eighth of the gateway's time.
"""

import gc
from threading import Lock

THRESHOLD = (20_000, 20, 20)

_lock = Lock()
_saved_settings: list[tuple[tuple[int, int, int], bool]] = []
"""For each call of `tune`, the threshold before it and whether objects were frozen (`gc.freeze`).

The first entry has the settings of the process itself.
"""


def tune() -> None:
    """Freeze all existing objects and collect less often, until `restore` has been called as often as `tune`."""
    with _lock:
        _saved_settings.append((gc.get_threshold(), gc.get_freeze_count() > 0))
        if len(_saved_settings) == 1:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*THRESHOLD)


def restore() -> None:
    """Undo the first `tune`, at the last of as many calls; a threshold that other code has set meanwhile stays.

    If the process had frozen objects before `tune`, all objects stay frozen, because Python can only unfreeze all.
    """
    with _lock:
        threshold, was_frozen = _saved_settings.pop()
        if not _saved_settings:
            if gc.get_threshold() == THRESHOLD:
                gc.set_threshold(*threshold)
            if not was_frozen:
                gc.unfreeze()
