"""`MaskedLog`: a log that takes what other processes print, masked by a process that does nothing else.

That process (`leyden.core.masking.log_filter`) keeps reading while this one is busy. Should it be killed, the pipes
stay open here, so that no writer is ended by it, and another process reads on.
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
from leyden.core.masking import says_secret

PIPE_BYTES = 1 << 20
"""What a writer may be ahead, where the system lets it."""
END_SECONDS = 60.0
"""How long the last lines may take."""
PAUSE_SECONDS = 1.0
"""Between attempts to start the process."""

logger = logging.getLogger(__name__)


class MaskedLog:
    """The end of the file at `path`, or this process's standard error; `secrets` are those known by value."""

    def __init__(self, path: str | None, secrets: Callable[[], Iterable[str]]) -> None:
        self._path, self._secrets = path, secrets
        self._output = -1
        self._pipes: set[int] = set()
        """Reading ends, kept open here as long as anybody writes."""
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ends = False

    async def start(self) -> None:
        """Open the log and start the process that writes it. Raises LeydenError where that cannot be."""
        try:
            self._output = os.dup(2) if self._path is None else open_log(self._path)
            await self._begin()
        except OSError as error:
            await self.stop()
            raise LeydenError(f"{self._path or 'the log'} cannot be written: {error.strerror}") from error
        self._keeping = asyncio.create_task(self._keep())

    def open_pipe(self) -> int:
        """Return a pipe whose lines go to the log: for another process, to be closed here once that has begun."""
        self._close_ended()
        reading, writing = os.pipe()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # beyond what the user may have
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(reading, False)
        self._pipes.add(reading)
        self._send(reading)
        return writing

    async def stop(self) -> None:
        """Write what was printed until now, and end."""
        self._ends = True
        try:
            if self._control is not None:
                self._control.close()
            if self._keeping is not None:
                await asyncio.wait({self._keeping}, timeout=END_SECONDS)
        finally:
            await self._give_up()

    async def _give_up(self) -> None:
        if self._keeping is not None and not self._keeping.done():
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            logger.warning("the last lines of %s are lost: what masks them does not end", self._path or "agents")
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
        """Start a process, and send it all pipes that there are."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._process = await started(self._start(theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        self._control = ours
        for pipe in self._pipes:
            self._send(pipe)

    async def _start(self, control: int) -> asyncio.subprocess.Process:
        ours = {name: value for name, value in os.environ.items() if not says_secret(name)}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leyden.core.masking.log_filter", str(control)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(control,),
            env={**ours, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )

    async def _keep(self) -> None:
        """Start the process again whenever it ends before it is to."""
        while self._process is not None:
            code = await self._process.wait()
            if self._ends and code == 0:
                return
            logger.warning("what masks %s has ended with code %d, and is started again", self._path or "agents", code)
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
                logger.warning("what masks %s cannot be started: %s", self._path or "agents", error)
                lost = sum(_emptied(pipe) for pipe in self._pipes)  # writers are not to wait for it
                logger.warning("%d bytes that agents have printed are lost", lost)
                await asyncio.sleep(PAUSE_SECONDS)

    def _send(self, pipe: int) -> None:
        """Send a pipe to the process, with the secrets of this moment; of one that has ended, `_keep` will."""
        if self._control is None:
            return
        secrets = _anonymous_file(json.dumps(sorted(self._secrets())).encode())
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [b"+"], [pipe, secrets])
        finally:
            os.close(secrets)

    def _close_ended(self) -> None:
        """Close the pipes that nobody writes to any more, once they have been read."""
        poll = select.poll()
        for pipe in self._pipes:
            poll.register(pipe, select.POLLIN)
        for pipe, events in poll.poll(0):
            if events & (select.POLLHUP | select.POLLIN) == select.POLLHUP:
                self._pipes.discard(pipe)
                os.close(pipe)


async def started(starting: Coroutine[Any, Any, asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """Wait until a process has started; one that is cancelled meanwhile is killed, not left to the event loop."""
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
    """Open a log of the user's own to be added to; a file that others can read is so no more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def _anonymous_file(content: bytes) -> int:
    """A file without a name, to be read from its beginning."""
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
    """Read all that is in a pipe; returns how much that was."""
    size = 0
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(pipe, PIPE_BYTES):
            size += len(piece)
    return size
