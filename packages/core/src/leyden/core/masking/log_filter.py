"""The process that masks what other processes print: `python -m leyden.core.masking.log_filter DESCRIPTOR`.

DESCRIPTOR is a Unix socket. Each byte that comes through it brings two descriptors: a pipe to read, and a file with
the secrets that are known by value, as a JSON list. Lines go to standard output. The process ends once the socket and
all pipes have ended; of a socket that ends while processes still hold a pipe, a fork goes on reading for them.

Loads the standard library and `leyden.core.masking`.
"""

import json
import os
import select
import selectors
import signal
import socket
import sys
from contextlib import suppress

from leyden.core.masking.known import remember_secret
from leyden.core.masking.lines import LineMasker

PIECE = 1 << 16
MOST_AT_THE_END = 1 << 26
"""Bytes of each pipe that are waited for when the socket ends."""


class LogFilter:
    """Reads pipes that come through `control`, and writes their masked lines to `output`."""

    def __init__(self, control: socket.socket, output: int) -> None:
        self._control, self._output = control, output
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._pipes: dict[int, LineMasker] = {}
        self._lost = 0
        """Bytes of lines that could not be written."""

    def run(self) -> None:
        """Read until nobody writes any more."""
        is_controlled = True
        while is_controlled or self._pipes:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    is_controlled = self._take()
                    if not is_controlled:
                        self._selector.unregister(self._control)
                        self._read_what_is_there()
                        self._leave_to_a_fork()
                elif key.fd in self._pipes:
                    self._read(key.fd)

    def _take(self) -> bool:
        """Take a pipe and secrets; returns False at the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        except OSError:
            return False
        if not data:
            return False
        if len(descriptors) == 2:
            pipe, secrets = descriptors
            with os.fdopen(secrets, "rb") as file, suppress(ValueError):
                file.seek(0)
                for secret in json.loads(file.read()):
                    remember_secret(secret)
            os.set_blocking(pipe, False)
            self._pipes[pipe] = LineMasker()
            self._selector.register(pipe, selectors.EVENT_READ)
        return True

    def _read(self, pipe: int) -> int:
        """Read once; returns how much there was."""
        try:
            data = os.read(pipe, PIECE)
        except BlockingIOError:
            return 0
        masker = self._pipes[pipe]
        self._mask(pipe, masker, data)
        if not data:
            del self._pipes[pipe]
            self._selector.unregister(pipe)
            os.close(pipe)
        return len(data)

    def _mask(self, pipe: int, masker: LineMasker, data: bytes) -> None:
        """Write what `data` completes, or all that waits if there is none; a fault of ours costs lines, no more."""
        try:
            self._write(masker.feed(data) if data else masker.close())
        except Exception as error:
            self._pipes[pipe] = LineMasker()
            self._write(f"[lines are left out, which could not be masked: {type(error).__name__}]\n".encode())

    def _read_what_is_there(self) -> None:
        for pipe in list(self._pipes):
            left = MOST_AT_THE_END
            while left > 0 and (read := self._read(pipe)):
                left -= read
            if pipe in self._pipes:
                self._mask(pipe, self._pipes[pipe], b"")

    def _leave_to_a_fork(self) -> None:
        """End, as whoever started this waits for; what outlives its worker and still prints must not be ended by it."""
        if not self._pipes:
            return
        if os.fork():
            os._exit(0)
        self._control.close()
        with open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), 2)

    def _write(self, lines: bytes) -> None:
        if self._lost and lines:
            lines = f"[{self._lost} bytes before this could not be written]\n".encode() + lines
        left = memoryview(lines)
        while left:
            try:
                left = left[os.write(self._output, left) :]
            except BlockingIOError:  # a terminal may be told not to block, by whoever shares it
                select.select([], [self._output], [])
            except OSError:  # the disk is full, or the reader has gone: what prints must go on
                self._lost += len(left)
                return
        if lines:
            self._lost = 0


def main() -> None:
    """Run until the end; signals for a whole group of processes are not for this one, which ends after the others."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        LogFilter(control, 1).run()


if __name__ == "__main__":
    main()
