"""State of a run: how its sessions ended is written into its folder, and read from there."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from leyden.core.errors import RunError
from leyden.core.trainer.event_loop import Terminated
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import last_holder

RunState = Literal[
    "running", "finished", "stopped", "failed", "interrupted", "not finished", "ended before its first step"
]
"""`stopped`: on request, by Ctrl-C, SIGTERM or a rollback. `failed`: an error ended the last session. `interrupted`:
the process of the last session is gone, and has recorded neither a report nor a reason. `not finished`: as far as this
machine knows, since the process belonged to another one, or none has begun. All four can be resumed."""

KILLED = "killed, or its machine went down: no process trains it, and none recorded why it ended"
ELSEWHERE = "process {pid} of {host} trained it last; whether that still does is not known on this machine"


def is_process_gone(folder: RunFolder) -> bool:
    """Whether the process that trained the run last is known to be gone; False for one of another machine."""
    if folder.is_in_use():
        return False
    if folder.session_stop() is not None or folder.session_error() is not None:
        return True
    holder = last_holder(folder.path)
    return holder is not None and holder.is_here()


@contextmanager
def end_recorded(folder: RunFolder) -> Generator[None]:
    """Context manager: if an error or a request ends the session, the run's folder has that until the next one begins.

    The caller has locked the folder, so that no reader finds a run without a process and without a reason.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, Terminated) as end:
        note_end(folder, end)
        raise


def note_end(folder: RunFolder, end: BaseException) -> None:
    """Record what ended a session early: an error, Ctrl-C or SIGTERM."""
    if isinstance(end, Exception):
        folder.note_session_error(end)
    else:
        folder.note_session_stop(f"requested by {'Ctrl-C' if isinstance(end, KeyboardInterrupt) else 'SIGTERM'}")


def state_and_reason(folder: RunFolder, *, in_use: bool | None = None) -> tuple[RunState, str | None]:
    """Return the state of the run in a folder, and why it ended early; None if it did not, or if that is not known.

    `in_use` is what `folder.is_in_use` returned, if the caller has called it.
    """
    if folder.is_in_use() if in_use is None else in_use:
        return "running", None
    if (failure := folder.failure()) is not None:
        return "ended before its first step", failure
    try:
        if (report := folder.report()) is not None and _last_step(folder) <= report.steps:
            return "finished", report.stopped_early  # else a later session has gone on since, and has written no report
    except RunError as error:  # the report is damaged, and a run writes it when it has finished
        return "finished", str(error)
    if (stop := folder.session_stop()) is not None:
        return "stopped", stop
    if (error := folder.session_error()) is not None:
        return "failed", error
    holder = last_holder(folder.path)
    if holder is None:
        return "not finished", None  # it has not begun, or an older version trained it
    if not holder.is_here():
        return "not finished", ELSEWHERE.format(pid=holder.pid, host=holder.host)
    return "interrupted", KILLED


def _last_step(folder: RunFolder) -> int:
    return max((line["step"] for line in folder.last_metrics()), default=0)
