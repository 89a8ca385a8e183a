"""`CommandProcess`: one run of a command line, with all processes that it starts.

A small supervisor process (`supervise.py`) runs between this process and the command. It outlives this process if that
is killed, and then ends the command. Nothing is left running, whichever of the two ends first.
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
"""Longest wait for a command to end after SIGTERM before it is killed."""
SUPERVISE = str(Path(__file__).with_name("supervise.py"))
PIECE = 65536

Sink = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: with exit code `code`, or killed by signal `signal`."""

    code: int | None = None
    signal: int | None = None

    @property
    def shell_code(self) -> int:
        """Exit code as a shell reports it: 128 + n after signal n."""
        return 128 + (self.signal or 0) if self.code is None else self.code

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(self.signal).name}"
        return f"was killed by signal {self.signal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Input of a command, and the functions that receive its output. None: the stream of this process itself."""

    stdin: bytes | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None
    terminal: bool = False
    """Whether this process's standard input is a terminal that the command may use."""


class CommandProcess:
    """One run of a command. Call `run` in a thread, and `send` and `end` from any other thread."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Streams) -> None:
        self._arguments, self._environment, self._streams = list(arguments), environment, streams
        self._control, self._child_end = socket.socketpair()
        self._gone = threading.Event()

    def run(self) -> Exit:
        """Run the command until none of its processes is left, and return how it ended.

        Raises AgentNotFound when it cannot be started, LeydenError when the supervisor was lost.
        """
        try:
            with self._control, self._start() as supervisor:
                answer = self._read(supervisor)
        finally:
            self._child_end.close()
            self._gone.set()
        return self._ended(answer.decode(errors="replace").strip())

    def send(self, number: int) -> None:
        """Send a signal to the command and its processes. Has no effect after the command has ended."""
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    def end(self) -> None:
        """End the command: SIGTERM, then SIGKILL after `GRACE_SECONDS`. `run` returns once it has ended."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def wait_gone(self, seconds: float) -> bool:
        """Wait up to `seconds` until `run` has finished. Returns whether it has."""
        return self._gone.wait(seconds)

    def _start(self) -> "subprocess.Popen[bytes]":
        streams, control = self._streams, self._child_end.fileno()
        terminal_mode = "terminal" if streams.terminal else "elsewhere"
        command = [
            sys.executable,
            "-I",
            "-S",
            SUPERVISE,
            str(control),
            str(GRACE_SECONDS),
            terminal_mode,
            *self._arguments,
        ]
        with tempfile.TemporaryFile() as task:  # a pipe would need a thread to fill it
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
                    process_group=0,  # survives a kill or interrupt of this process's group, to clean up
                )
            except (OSError, ValueError) as error:  # arguments too long, or with a null byte
                raise AgentNotFound(f"{self._arguments[0]} cannot be started: {error}") from error
            self._child_end.close()
            return process

    def _read(self, supervisor: "subprocess.Popen[bytes]") -> bytes:
        """Forward the command's output until the supervisor closes its socket. Returns the supervisor's last line."""
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for pipe, sink in ((supervisor.stdout, self._streams.stdout), (supervisor.stderr, self._streams.stderr)):
                if pipe is not None and sink is not None:
                    selector.register(pipe, selectors.EVENT_READ, (pipe, sink))
            while True:
                events = selector.select()
                for key, _ in events:
                    if key.data is not None and not _forward(*key.data):
                        selector.unregister(key.fileobj)
                if any(key.data is None for key, _ in events):
                    piece = self._control.recv(PIECE)
                    answer += piece
                    if not piece:
                        break
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    _drain(*key.data)
        return bytes(answer)

    def _ended(self, answer: str) -> Exit:
        kind, _, value = answer.partition(" ")
        if kind == "error":
            raise AgentNotFound(f"{self._arguments[0]} cannot be started: {value}")
        if kind not in ("exit", "signal"):
            raise LeydenError(f"the process that supervises {self._arguments[0]} was lost")
        return Exit(code=int(value)) if kind == "exit" else Exit(signal=int(value))


def _forward(pipe: IO[bytes], sink: Sink) -> bool:
    """Forward what can be read now. Returns False at the end of the pipe."""
    piece = os.read(pipe.fileno(), PIECE)
    sink(piece)
    return bool(piece)


def _drain(pipe: IO[bytes], sink: Sink) -> None:
    """Forward what is already in the pipe. Does not wait for processes that still hold its other end."""
    os.set_blocking(pipe.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while _forward(pipe, sink):
            continue
