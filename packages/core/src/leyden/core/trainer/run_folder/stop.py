"""Stop a run: requests the process that trains it to end, and waits until it has."""

import os
import signal
import time
from collections.abc import Callable

from leyden.core.errors import RunError
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import is_locked, lock_holder

POLL_SECONDS = 0.1


def stop_run(folder: RunFolder, seconds: float, waiting: Callable[[int], None] = lambda _: None) -> None:
    """Send SIGTERM to the process that trains a run, and return when it has ended; it can be resumed.

    `waiting` receives the number of that process. Raises RunError if no process trains the run, if it does so on
    another machine or for another user, and if it has not ended after `seconds`.
    """
    name = folder.path.name
    holder = lock_holder(folder.path)
    if holder is None:
        if is_locked(folder.path):
            raise RunError(f"run {name!r} does not name the process that trains it: send it SIGTERM or Ctrl-C yourself")
        raise RunError(f"no process trains run {name!r}")
    if not holder.is_here():
        raise RunError(f"run {name!r} is trained by process {holder.pid} of {holder.host}: stop it there")
    try:
        os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        raise RunError(
            f"run {name!r} is in use by processes that process {holder.pid} has left behind, and which have no name"
        ) from None
    except PermissionError:
        raise RunError(f"process {holder.pid}, which trains run {name!r}, belongs to another user") from None
    waiting(holder.pid)
    end = time.monotonic() + seconds
    while lock_holder(folder.path) == holder:
        if time.monotonic() > end:
            raise RunError(
                f"process {holder.pid} has not ended {seconds:g} s after SIGTERM: it may be writing its last checkpoint"
            )
        time.sleep(POLL_SECONDS)
