"""Log filter process: masks the output of other processes: `python -m leyden.core.masking.log_filter DESCRIPTOR`.

DESCRIPTOR is the file descriptor of a Unix socket. Each byte that arrives on it brings two descriptors: a pipe to read,
and a file with the known secrets as a JSON list. Masked lines are written to standard output. The process ends when the
socket and all pipes have ended. If the socket ends while other processes still have a pipe open, a fork of this process
continues to read.

The process imports only the standard library and `leyden.core.masking`.
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
MAX_FINAL_BYTES = 1 << 26
"""Most bytes that are read from each pipe when the socket ends."""


class LogFilter:
    """Log filter: receives pipes through the socket `control`, and writes their masked lines to `output`."""

    def __init__(self, control: socket.socket, output: int) -> None:
        self._control, self._output = control, output
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._pipes: dict[int, LineMasker] = {}
        self._lost_bytes = 0
        """Number of bytes that could not be written since the last successful write."""

    def run(self) -> None:
        """Read until the socket and all pipes have ended."""
        is_controlled = True
        while is_controlled or self._pipes:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    is_controlled = self._take()
                    if not is_controlled:
                        self._selector.unregister(self._control)
                        self._read_available()
                        self._continue_in_fork()
                elif key.fd in self._pipes:
                    self._read(key.fd)

    def _take(self) -> bool:
        """Receive a pipe and secrets from the socket; return False if the socket has ended."""
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
        """Read once from a pipe; return the number of bytes."""
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
        """Write the lines that `data` completes; without data, write all buffered text.

        An error of the masker drops these lines, and a note is written instead.
        """
        try:
            self._write(masker.feed(data) if data else masker.close())
        except Exception as error:
            self._pipes[pipe] = LineMasker()
            self._write(f"[lines that could not be masked are left out: {type(error).__name__}]\n".encode())

    def _read_available(self) -> None:
        for pipe in list(self._pipes):
            left = MAX_FINAL_BYTES
            while left > 0 and (read := self._read(pipe)):
                left -= read
            if pipe in self._pipes:
                self._mask(pipe, self._pipes[pipe], b"")

    def _continue_in_fork(self) -> None:
        """End this process, and let a fork read the pipes that are still open.

        The process that started this one waits for its end. Programs that outlive their worker process may still print,
        and a closed pipe would end them.
        """
        if not self._pipes:
            return
        if os.fork():
            os._exit(0)
        self._control.close()
        with open(os.devnull, "r+b") as null_device:
            os.dup2(null_device.fileno(), 2)

    def _write(self, lines: bytes) -> None:
        if self._lost_bytes and lines:
            lines = f"[{self._lost_bytes} bytes before this line could not be written]\n".encode() + lines
        left = memoryview(lines)
        while left:
            try:
                left = left[os.write(self._output, left) :]
            except BlockingIOError:  # another process may have set a shared terminal to non-blocking mode
                select.select([], [self._output], [])
            except OSError:  # the disk is full or the reader has ended; the printing processes must continue
                self._lost_bytes += len(left)
                return
        if lines:
            self._lost_bytes = 0


def main() -> None:
    """Run the filter; ignore signals to the process group, because this process must end after the others."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        LogFilter(control, 1).run()


if __name__ == "__main__":
    main()
