"""`ForkServer`: a process without threads that forks one process for each attempt.

The parent sends one socket for each process that it wants, and receives the process's pid. When that process has ended,
the parent receives its exit status. The server ends with its parent. It then ends all processes that it has forked, and
their descendants, even those in sessions of their own.
"""

import asyncio
import contextlib
import ctypes
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from leyden.core.errors import LeydenError
from leyden.core.runner.commands.supervise import adopt_orphans
from leyden.core.runner.workers.leftovers import end_children
from leyden.core.runner.workers.pipes import flush_output

ServeChild = Callable[[socket.socket], None]
"""Body of a forked process, called with its socket. The process ends when this returns."""

_REPORT = struct.Struct("<iii")
FORKED, ENDED, FAILED = 1, 2, 3
FORK, PREPARE = b"f", b"p"
PR_SET_PDEATHSIG = 1


class ForkFailed(LeydenError):
    """The system could not start another process."""


class ForkedProcess:
    """The runner's handle of one forked process."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code, once the process has ended. Negative: the number of the signal that killed it."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. Does nothing once it has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def how_it_ended(self) -> str:
        """Return how the process ended, as text."""
        code = self.ended.result()
        return f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


class ForkServer:
    """The parent's side of a fork server.

    Create it with `fork` before an event loop runs; call `spawn` on one loop only.
    """

    def __init__(self, pid: int, requests: socket.socket, reports: int) -> None:
        self.pid = pid
        self._requests, self._reports = requests, reports
        self._buffer = b""
        self._pending_forks: deque[tuple[asyncio.Future[ForkedProcess], socket.socket]] = deque()
        self._running: dict[int, ForkedProcess] = {}
        self._prepared = set[str]()
        self.folder = Path(tempfile.gettempdir(), f"leyden-{os.getpid()}-{secrets.token_hex(4)}")
        """Parent of a folder for each process that needs one.

        Made by the first such process, removed with the server.
        """
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_ended = False
        self.warm = asyncio.Event()
        """Set when a first process has ended. Later processes find loaded what that process had to import."""
        self.gone = asyncio.Event()
        """Set when the server has ended by itself. Nothing can be forked any more."""

    @classmethod
    def fork(
        cls,
        serve_child: ServeChild,
        close: Callable[[], None] = lambda: None,
        prepare: Callable[[list[str]], None] = lambda names: None,
    ) -> "ForkServer":
        """Fork the server from this process, which should have no other threads. Returns the parent's side.

        The server calls `close` first. It calls `prepare` with names that the parent sends, before the next fork.
        """
        parent_end, child_end = socket.socketpair()
        reading, writing = os.pipe()
        flush_output()
        pid = os.fork()
        if pid == 0:
            parent_end.close()
            os.close(reading)
            close()
            _serve(_ServerLoop(child_end, writing, serve_child, prepare))
        child_end.close()
        os.close(writing)
        os.set_blocking(reading, False)
        return cls(pid, parent_end, reading)

    def prepare(self, names: Iterable[str]) -> None:
        """Send the names that the server does not have yet. It calls its `prepare` with them before it forks again."""
        new = [name for name in names if name not in self._prepared]
        if not new or self.gone.is_set():
            return
        self._prepared.update(new)
        body = msgspec.json.encode(new)
        self._requests.sendall(PREPARE + len(body).to_bytes(4, "little") + body)

    async def spawn(self) -> ForkedProcess:
        """Fork a process and return its handle.

        Raises ForkFailed when the system refuses, LeydenError when the server is gone.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._reports, self._read)
        parent_end, child_end = socket.socketpair()
        forked: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        try:
            if self.gone.is_set():
                raise LeydenError("the fork server, which starts the agents' processes, has ended")
            socket.send_fds(self._requests, [FORK], [child_end.fileno()])
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        self._pending_forks.append((forked, parent_end))
        return await asyncio.shield(forked)

    def end(self) -> None:
        """End the server and all processes that it has forked. A second call does nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._loop is not None:
            self._loop.remove_reader(self._reports)
        self._requests.close()  # the server kills its children and exits
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._reports)
        self._fail_all("the runner has stopped")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        try:
            data = os.read(self._reports, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.gone.set()
            if self._loop is not None:
                self._loop.remove_reader(self._reports)
            self._fail_all("the fork server, which starts the agents' processes, has ended")
            return
        self._buffer += data
        complete = len(self._buffer) - len(self._buffer) % _REPORT.size
        for what, pid, value in _REPORT.iter_unpack(self._buffer[:complete]):
            self._handle_report(what, pid, value)
        self._buffer = self._buffer[complete:]

    def _handle_report(self, what: int, pid: int, value: int) -> None:
        if what == ENDED:
            process = self._running.pop(pid, None)
            self.warm.set()
            if process is not None and not process.ended.done():
                process.ended.set_result(os.waitstatus_to_exitcode(value))
            return
        forked, connection = self._pending_forks.popleft()
        if what == FAILED:
            connection.close()
            forked.set_exception(ForkFailed(f"no process can be started: {os.strerror(value)}"))
            return
        process = self._running[pid] = ForkedProcess(pid, connection)
        if forked.cancelled():
            process.signal(signal.SIGKILL)
            connection.close()
        else:
            forked.set_result(process)

    def _fail_all(self, why: str) -> None:
        for forked, connection in self._pending_forks:
            connection.close()
            if not forked.done():
                forked.set_exception(LeydenError(why))
        self._pending_forks.clear()
        for process in self._running.values():
            if not process.ended.done():
                process.ended.set_result(-signal.SIGKILL)
        self._running.clear()


# --- The server's side


def _serve(loop: "_ServerLoop") -> NoReturn:
    """Fork on request until the parent closes its end of the socket. Never returns to the caller's code."""
    try:
        end_with_parent()
        adopt_orphans()
        loop.run()
    finally:
        os._exit(0)


class _ServerLoop:
    def __init__(
        self, requests: socket.socket, reports: int, serve_child: ServeChild, prepare: Callable[[list[str]], None]
    ) -> None:
        self._requests, self._reports = requests, reports
        self._serve_child, self._prepare = serve_child, prepare
        self._children: set[int] = set()
        self._wakeup_reader, self._wakeup_writer = os.pipe()

    def run(self) -> None:
        for end in (self._wakeup_reader, self._wakeup_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._requests, self._wakeup_reader], [], [])
            if self._wakeup_reader in ready:
                self._reap()
            if self._requests in ready:
                what, descriptors, _, _ = socket.recv_fds(self._requests, 1, 1)
                if not what:
                    break
                if what == FORK:
                    self._fork(socket.socket(fileno=descriptors[0]))
                else:
                    self._prepare(msgspec.json.decode(self._read(int.from_bytes(self._read(4), "little"))))
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_children()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (piece := self._requests.recv(size - len(data))):
            data += piece
        return data

    def _fork(self, connection: socket.socket) -> None:
        flush_output()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(FAILED, 0, error.errno or 0)
            connection.close()
            return
        if pid == 0:
            self._run_child(connection)
        self._children.add(pid)
        self._report(FORKED, pid, 0)
        connection.close()

    def _run_child(self, connection: socket.socket) -> NoReturn:
        """Run as the forked process, then exit."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for descriptor in (self._wakeup_reader, self._wakeup_writer, self._reports):
                os.close(descriptor)
            self._requests.close()
            end_with_parent()
            self._serve_child(connection)
            code = 0
        finally:
            flush_output()
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakeup_reader, 512):
                continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:  # otherwise a process that an attempt left behind
                self._children.discard(pid)
                self._report(ENDED, pid, status)

    def _report(self, what: int, pid: int, value: int) -> None:
        os.write(self._reports, _REPORT.pack(what, pid, value))


def end_with_parent() -> None:
    """Have Linux kill this process when its parent ends. Does nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wake_up(number: int, frame: object) -> None:
    """Do nothing: `set_wakeup_fd` works only where a handler exists."""
