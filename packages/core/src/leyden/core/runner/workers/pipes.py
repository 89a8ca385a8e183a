"""Pipes between a worker and its parent: one carries reports, the end of the other shows that the parent is gone.

They are the worker's standard input and output at its start. Both are replaced before agent code is loaded. An agent
then reads an empty input, and its output goes to the process's standard error, which is the log.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

import msgspec

from leyden.core.errors import LeydenError
from leyden.core.masking import mask_text
from leyden.core.runner.workers.leftovers import end_descendants

DRAIN = b"drain\n"
"""Line of the parent, after the token: claim no further rollout, and end once the claimed ones have ended."""
MESSAGE_CHARACTERS = 4000
"""Longest message of an error in a report."""


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """Report: the agent is loaded and the worker begins to claim rollouts."""

    adapter: str
    isolation: str = ""
    """One line: whether rollouts run in processes of their own, and why."""
    shares: bool = False
    """Whether attempts run in the worker process itself, so that one of them can end the others."""
    keeps_open: str = ""
    """Resources that the agent's import left open and that a fork would harm. Empty: none."""


class WorkerRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Report: the worker cannot start. `kind` names a class of `leyden.core.errors`."""

    kind: str
    message: str


class WorkerHeartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """Report: the event loop is not blocked."""

    finished: int
    """Number of attempts that have run to their end."""
    running: int = 0
    """Number of attempts that run now."""


WorkerReport = WorkerReady | WorkerRefused | WorkerHeartbeat
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[WorkerReport] = msgspec.json.Decoder(WorkerReport)


def refusal_of(error: BaseException) -> WorkerRefused:
    """Return `error` as a report, under its own class name or that of its nearest base class in Leyden."""
    own_classes = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == LeydenError.__module__)
    return WorkerRefused(next(own_classes, type(error).__name__), mask_text(str(error))[:MESSAGE_CHARACTERS])


def decode_report(line: bytes) -> WorkerReport:
    """Decode one report. Raises msgspec.MsgspecError for any other line."""
    return _DECODER.decode(line)


class ParentPipes:
    """The worker's side of the pipes."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        self._parent_ended = False
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def read_line(self) -> bytes:
        """Wait for the parent's next line and return it. Reads no byte beyond the line."""
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = os.read(self._input, 1)
            if not piece:
                break
            line += piece
        return bytes(line)

    def send(self, report: WorkerReport) -> None:
        """Send a report to the parent. Does not wait for a parent that is gone or does not read."""
        os.set_blocking(self._output, False)
        with contextlib.suppress(OSError):
            os.write(self._output, _ENCODER.encode(report) + b"\n")

    def close(self) -> None:
        """Close the pipes in a process that was forked from the worker."""
        os.close(self._input)
        os.close(self._output)

    def when_parent_ends(
        self, stop: Callable[[], object], *, grace_seconds: float, drain: Callable[[], object] = bool
    ) -> None:
        """Start a thread that waits for the parent's end.

        It then calls `stop`, and ends the process after `grace_seconds` in any case. It calls `drain` when the parent
        sends `DRAIN`.
        """

        def wait_for_parent() -> None:
            with contextlib.suppress(OSError):
                while os.read(self._input, 4096):  # `DRAIN` is the only line that it sends
                    drain()
            self._parent_ended = True
            stop()
            threading.Event().wait(grace_seconds)
            self.leave(1, alone=True)

        threading.Thread(target=wait_for_parent, name="leyden-parent", daemon=True).start()

    def leave(self, code: int, *, alone: bool = False) -> None:
        """End the process, whatever threads it has. When the parent is gone, end the whole process group as well.

        `alone`: descendants outside the group are not killed, because they end by themselves.
        """
        if not alone:
            end_descendants()
        if self._parent_ended and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(code)


def flush_output() -> None:
    """Flush Python's standard streams. A stream that the agent closed is skipped."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
