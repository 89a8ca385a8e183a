"""The two pipes between a worker and its parent: news go up, and the end of the other one means the parent is gone.

They are the process's standard input and output at its start. Both are taken away before agent code is loaded: an
agent reads an empty input, and its output goes where the process's standard error does: to the log.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

import msgspec

from leyden.core.runner.workers.leftovers import end_descendants


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The agent is loaded and claims begin."""

    adapter: str
    isolation: str = ""
    """Whether rollouts run in processes of their own, and why; one line."""
    shares: bool = False
    """Whether one attempt can end the others: they run in this one process."""
    keeps_open: str = ""
    """What the agent's import left open, so that a fork of this process would be harmed; empty: nothing."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker cannot start; `kind` names a class of `leyden.core.errors`."""

    kind: str
    message: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The event loop turns."""

    finished: int
    """Attempts run to their end so far."""


News = Ready | Refused | Beat
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def decode_news(line: bytes) -> News:
    """Read one line. Raises msgspec.MsgspecError when it is not ours."""
    return _DECODER.decode(line)


class ParentPipes:
    """A worker's side of the pipes."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        self._parent_ended = False
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def read_line(self) -> bytes:
        """Wait for the parent's next line, and read nothing behind it."""
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = os.read(self._input, 1)
            if not piece:
                break
            line += piece
        return bytes(line)

    def tell(self, news: News) -> None:
        """Send news; a parent that is gone or does not listen is not waited for."""
        os.set_blocking(self._output, False)
        with contextlib.suppress(OSError):
            os.write(self._output, _ENCODER.encode(news) + b"\n")

    def close(self) -> None:
        """Let go of the pipes, in a process that was forked off the worker."""
        os.close(self._input)
        os.close(self._output)

    def when_parent_ends(self, stop: Callable[[], object], *, grace_seconds: float) -> None:
        """In a thread, wait for the parent's end; then call `stop`, and end the process a while later in any case."""

        def watch() -> None:
            with contextlib.suppress(OSError):
                while os.read(self._input, 4096):
                    pass
            self._parent_ended = True
            stop()
            threading.Event().wait(grace_seconds)
            self.leave(1, alone=True)

        threading.Thread(target=watch, name="leyden-parent", daemon=True).start()

    def leave(self, code: int, *, alone: bool = False) -> None:
        """End the process, whatever threads it has; and all its group, when no parent is left that would do so.

        `alone`: what it has started ends by itself.
        """
        if not alone:
            end_descendants()
        if self._parent_ended and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(code)


def flush_output() -> None:
    """Write out what Python still holds; a stream that the agent closed is left alone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
