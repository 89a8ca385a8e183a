"""`MaskedLog`: writes the output of other processes to a log, with secrets masked by a separate process.

The masking process (`leyden.core.masking.log_filter`) goes on reading while this process is busy. This process keeps
the pipes open too. If the masking process is killed, no writer ends from a broken pipe, and a new masking process
continues.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import select
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from leyden.core.errors import LeydenError
from leyden.core.masking import is_secret_name

PIPE_BYTES = 1 << 20
"""Wanted capacity of each pipe, in bytes. Only Linux allows the setting."""
END_SECONDS = 60.0
"""Longest wait for the last lines when the log stops."""
PAUSE_SECONDS = 1.0
"""Pause between tries to start the masking process."""

logger = logging.getLogger(__name__)


class MaskedLog:
    """Log that appends to the file at `path`, or writes to this process's standard error where `path` is None.

    `secrets` returns the values to mask.
    """

    def __init__(self, path: str | None, secrets: Callable[[], Iterable[str]]) -> None:
        self._path, self._secrets = path, secrets
        self._output = -1
        self._pipes: set[int] = set()
        """Reading ends of the pipes, kept open here as long as a process writes to them."""
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._ends = False

    async def start(self) -> None:
        """Open the log and start the masking process. Raises LeydenError where either fails."""
        try:
            self._output = os.dup(2) if self._path is None else open_log(self._path)
            await self._begin()
        except OSError as error:
            await self.stop()
            raise LeydenError(f"{self._path or 'the log'} cannot be written: {error.strerror}") from error
        self._keep_alive_task = asyncio.create_task(self._keep_alive())

    def open_pipe(self) -> int:
        """Return the writing end of a pipe to the log.

        The caller closes it once it has started the process that uses it.
        """
        self._close_ended()
        reading, writing = os.pipe()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # above the user's limit
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(reading, False)
        self._pipes.add(reading)
        self._send(reading)
        return writing

    async def stop(self) -> None:
        """Write what was printed so far, then stop the masking process and close the log."""
        self._ends = True
        try:
            if self._control is not None:
                self._control.close()
            if self._keep_alive_task is not None:
                await asyncio.wait({self._keep_alive_task}, timeout=END_SECONDS)
        finally:
            await self._give_up()

    async def _give_up(self) -> None:
        if self._keep_alive_task is not None and not self._keep_alive_task.done():
            self._keep_alive_task.cancel()
            await asyncio.gather(self._keep_alive_task, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            logger.warning(
                "the last lines of %s are lost: the process that masks them did not end in time", self._path or "agents"
            )
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._control is not None:
            self._control.close()
        for descriptor in (*self._pipes, self._output):
            if descriptor >= 0:
                os.close(descriptor)
        self._pipes.clear()
        self._output = -1

    async def _begin(self) -> None:
        """Start a masking process and send it all pipes."""
        parent_end, child_end = socket.socketpair()
        parent_end.setblocking(False)
        try:
            with child_end:
                self._process = await started(self._start(child_end.fileno()))
        except BaseException:
            parent_end.close()
            raise
        self._control = parent_end
        for pipe in self._pipes:
            self._send(pipe)

    async def _start(self, control: int) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leyden.core.masking.log_filter", str(control)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(control,),
            env={**environment, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # a terminal's Ctrl-C must not reach it
        )

    async def _keep_alive(self) -> None:
        """Restart the masking process whenever it ends before `stop`."""
        while self._process is not None:
            code = await self._process.wait()
            if self._ends and code == 0:
                return
            logger.warning(
                "the process that masks %s ended with code %d and is restarted", self._path or "agents", code
            )
            if self._control is not None:
                self._control.close()
            await self._begin_again()
            if self._ends and self._control is not None:
                self._control.close()

    async def _begin_again(self) -> None:
        while True:
            try:
                return await self._begin()
            except OSError as error:
                logger.warning("the process that masks %s cannot be started: %s", self._path or "agents", error)
                lost = sum(_emptied(pipe) for pipe in self._pipes)  # writers must not wait for the restart
                logger.warning("%d bytes of the agents' output are lost", lost)
                await asyncio.sleep(PAUSE_SECONDS)

    def _send(self, pipe: int) -> None:
        """Send a pipe and the current secrets to the masking process.

        If that has ended, `_keep_alive` sends the pipe again.
        """
        if self._control is None:
            return
        secrets = _anonymous_file(json.dumps(sorted(self._secrets())).encode())
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [b"+"], [pipe, secrets])
        finally:
            os.close(secrets)

    def _close_ended(self) -> None:
        """Close the pipes that have no writer any more and have been read to the end."""
        poll = select.poll()
        for pipe in self._pipes:
            poll.register(pipe, select.POLLIN)
        for pipe, events in poll.poll(0):
            if events & (select.POLLHUP | select.POLLIN) == select.POLLHUP:
                self._pipes.discard(pipe)
                os.close(pipe)


async def started(starting: Coroutine[Any, Any, asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """Wait until a process has started. If the caller is cancelled meanwhile, the process is killed."""
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            process = await task
            process.kill()
            await process.wait()
        raise


def open_log(path: str) -> int:
    """Open a log file to append to, and return its descriptor. Other users lose access to a file of this user's."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def _anonymous_file(content: bytes) -> int:
    """Return a descriptor of an unnamed file with `content`, to be read from its beginning."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("leyden")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return os.dup(file.fileno())


def _emptied(pipe: int) -> int:
    """Read everything in a pipe and return the number of bytes."""
    size = 0
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(pipe, PIPE_BYTES):
            size += len(piece)
    return size
