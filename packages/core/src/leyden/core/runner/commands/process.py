"""`CommandProcess`: one run of a command line, with everything it starts. Knows nothing of attempts or tasks.

Between us and the command stands a small process (`supervise.py`) that outlives us when we are killed, and then ends
the command: nothing is left behind, whichever of the two goes first.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leyden.core.errors import AgentNotFound, LeydenError

GRACE_SECONDS = 2.0
"""How long a command may take to end after SIGTERM before it is killed."""
SUPERVISE = str(Path(__file__).with_name("supervise.py"))
PIECE = 65536

Sink = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: with a `code`, or killed by a `signal`."""

    code: int | None = None
    signal: int | None = None

    @property
    def shell_code(self) -> int:
        """The exit code as a shell gives it: 128 + n after signal n."""
        return 128 + (self.signal or 0) if self.code is None else self.code

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(self.signal).name}"
        return f"was killed by signal {self.signal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What a command reads, and who gets what it writes; None: the stream of this process itself."""

    stdin: bytes | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None
    terminal: bool = False
    """Our standard input is a terminal, and the command is to have it."""


class CommandProcess:
    """`run` in a thread, `send` and `end` from any other."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Streams) -> None:
        self._arguments, self._environment, self._streams = list(arguments), environment, streams
        self._control, self._theirs = socket.socketpair()
        self._gone = threading.Event()

    def run(self) -> Exit:
        """Run the command until nothing of it is left, and say how it ended.

        Raises AgentNotFound when it cannot be started.
        """
        try:
            with self._control, self._start() as supervisor:
                said = self._read(supervisor)
        finally:
            self._theirs.close()
            self._gone.set()
        return self._ended(said.decode(errors="replace").strip())

    def send(self, number: int) -> None:
        """Send a signal to the command and what it has started; one that has ended is not reached."""
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    def end(self) -> None:
        """Ask the command to end: SIGTERM, then SIGKILL after `GRACE_SECONDS`. `run` returns when it has."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def wait_gone(self, seconds: float) -> bool:
        """Wait until `run` is through; returns whether it is."""
        return self._gone.wait(seconds)

    def _start(self) -> "subprocess.Popen[bytes]":
        streams, control = self._streams, self._theirs.fileno()
        where = "terminal" if streams.terminal else "elsewhere"
        command = [sys.executable, "-I", "-S", SUPERVISE, str(control), str(GRACE_SECONDS), where, *self._arguments]
        with tempfile.TemporaryFile() as task:  # a pipe would need somebody to fill it
            task.write(streams.stdin or b"")
            task.seek(0)
            try:
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=None if streams.stdin is None else task,
                    stdout=subprocess.PIPE if streams.stdout else None,
                    stderr=subprocess.PIPE if streams.stderr else None,
                    pass_fds=[control],
                    process_group=0,  # what is killed or interrupted with our group leaves it to clean up
                )
            except (OSError, ValueError) as error:  # arguments too long, or with a null byte
                raise AgentNotFound(f"{self._arguments[0]} cannot be started: {error}") from error
            self._theirs.close()
            return process

    def _read(self, supervisor: "subprocess.Popen[bytes]") -> bytes:
        """Hand on what is written until the supervisor closes its end; returns its last line."""
        said = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for pipe, sink in ((supervisor.stdout, self._streams.stdout), (supervisor.stderr, self._streams.stderr)):
                if pipe is not None and sink is not None:
                    selector.register(pipe, selectors.EVENT_READ, (pipe, sink))
            while True:
                events = selector.select()
                for key, _ in events:
                    if key.data is not None and not _hand_on(*key.data):
                        selector.unregister(key.fileobj)
                if any(key.data is None for key, _ in events):
                    piece = self._control.recv(PIECE)
                    said += piece
                    if not piece:
                        break
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    _drain(*key.data)
        return bytes(said)

    def _ended(self, said: str) -> Exit:
        kind, _, value = said.partition(" ")
        if kind == "error":
            raise AgentNotFound(f"{self._arguments[0]} cannot be started: {value}")
        if kind not in ("exit", "signal"):
            raise LeydenError(f"the process that looks after {self._arguments[0]} was lost")
        return Exit(code=int(value)) if kind == "exit" else Exit(signal=int(value))


def _hand_on(pipe: IO[bytes], sink: Sink) -> bool:
    """Hand on what can be read now; returns False at the end."""
    piece = os.read(pipe.fileno(), PIECE)
    sink(piece)
    return bool(piece)


def _drain(pipe: IO[bytes], sink: Sink) -> None:
    """Hand on what is in the pipe already; who still holds its other end is not waited for."""
    os.set_blocking(pipe.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while _hand_on(pipe, sink):
            continue
