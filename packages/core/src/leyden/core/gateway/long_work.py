"""`LongWork`: reading and encoding long requests on threads, one at a time for each attempt.

Short requests are worked on where they are: a thread would cost more than the work. While the long request of one
attempt is parsed, rendered and encoded, calls of others are answered; a second long one of the same attempt waits, and
an attempt that uses more CPU than its share is refused for a while. Knows nothing of HTTP, models or messages.
"""

import asyncio
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from leyden.core.errors import UsageError
from leyden.core.gateway.refusal import Refusal, retry_after
from leyden.core.gateway.template import MOST_STEPS, Steps, TemplateTooLong, limited

T = TypeVar("T")

REMEMBERED = 4096
"""Attempts whose use of CPU is kept in mind; of those that do nothing, the oldest is forgotten first."""
_SWITCH_SECONDS = 0.0005
"""How long a thread of long work may keep the interpreter from the event loop. Python's own default is ten times it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """What is long, and how much of it an attempt may ask for."""

    inline_bytes: int = 8 << 10
    """Of text; what is longer is worked on off the event loop."""
    inline_steps: int = 2_000
    """Of a chat template; one that needs more begins again off the event loop."""
    steps: int = MOST_STEPS
    template_seconds: float = 20.0
    cpu_seconds: float = 60.0
    """That an attempt may use at once after a quiet time."""
    cpu_rate: float = 0.5
    """Seconds of CPU a second that it may go on with."""
    threads: int = max(2, min(4, os.cpu_count() or 1))

    def __post_init__(self) -> None:
        for name in ("template_seconds", "cpu_seconds", "cpu_rate"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.inline_bytes < 0 or self.threads < 1 or self.inline_steps < 0 or self.steps < 1:
            raise UsageError("inline_bytes and inline_steps must be at least 0, steps and threads at least 1")


class LongWork:
    """Belongs to one event loop; `clock` gives seconds, `cpu_clock` those that the calling thread has computed."""

    def __init__(
        self,
        limits: WorkLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.limits = limits or WorkLimits()
        self._clock, self._cpu_clock = clock, cpu_clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[Any]] = set()

    def slot(self, attempt_id: str) -> "Slot":
        """Return what does the long work of one request; to be freed."""
        return Slot(self, attempt_id)

    async def aclose(self) -> None:
        """Wait for what is still worked on, and end the threads."""
        if self._running:
            await asyncio.wait([*self._running])
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def account(self, attempt_id: str) -> "_Account":
        """Return the account of an attempt, with what it has earned since it was used last."""
        account = self._accounts.get(attempt_id)
        if account is None:
            account = self._accounts[attempt_id] = _Account(self.limits.cpu_seconds, self._clock())
            self._forget()
        self._accounts.move_to_end(attempt_id)
        now = self._clock()
        account.left = min(self.limits.cpu_seconds, account.left + (now - account.at) * self.limits.cpu_rate)
        account.at = now
        return account

    def start(self, account: "_Account", steps: Steps, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a thread do `call`, and charge the account for it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.limits.threads, "leyden long work")
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, account, steps, call)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: "asyncio.Future[Any]") -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # of what nobody waits for any more, too

    def _timed(self, account: "_Account", steps: Steps, call: Callable[[], T]) -> T:
        began = self._cpu_clock()
        _sharing.enter()
        try:
            with limited(steps):
                return call()
        finally:
            _sharing.leave()
            account.left -= self._cpu_clock() - began

    def _forget(self) -> None:
        for attempt_id in [*self._accounts][: max(0, len(self._accounts) - REMEMBERED)]:
            if not self._accounts[attempt_id].turn.locked():
                del self._accounts[attempt_id]


class Slot:
    """The long work of one request: it waits for its attempt's turn when it has any, and keeps it until it is freed."""

    def __init__(self, work: LongWork, attempt_id: str) -> None:
        self._work, self._attempt_id = work, attempt_id
        self._account: _Account | None = None
        self._job: asyncio.Future[Any] | None = None

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    async def take(self, size: int) -> None:
        """Wait for the attempt's turn if so many bytes are long work.

        Raises Refusal with status 429 where the attempt has used more CPU than it may.
        """
        if size <= self._work.limits.inline_bytes or self._account is not None:
            return
        account = self._work.account(self._attempt_id)
        if account.left <= 0:
            message = "This attempt's long requests have taken more CPU time than one attempt may use."
            advice = retry_after(-account.left / self._work.limits.cpu_rate)
            raise Refusal(429, message, type="requests", code="rate_limit_exceeded", headers=advice)
        await account.turn.acquire()
        self._account = account

    async def run_and_free(self, size: int, call: Callable[[], T]) -> T:
        """Return what `run` returns; the attempt's next long work need not wait for the rest of this request."""
        try:
            return await self.run(size, call)
        finally:
            self.free()

    async def run(self, size: int, call: Callable[[], T]) -> T:
        """Return what `call` returns, which works on so many bytes of text; raises what it raises."""
        limits = self._work.limits
        if size <= limits.inline_bytes:
            try:
                with limited(Steps(limits.inline_steps)):
                    return call()
            except TemplateTooLong:
                size = limits.inline_bytes + 1
        await self.take(size)
        assert self._account is not None
        steps = Steps(limits.steps, time.monotonic() + limits.template_seconds)
        job = self._work.start(self._account, steps, call)
        self._job = job
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            steps.stop()
            raise

    def free(self) -> None:
        """Let the attempt's next long request have its turn, once the thread has ended this one."""
        account, job = self._account, self._job
        self._account = self._job = None
        if account is None:
            return
        if job is None or job.done():
            account.turn.release()
        else:
            job.add_done_callback(lambda _: account.turn.release())


class _Account:
    """One attempt's turn and CPU time."""

    __slots__ = ("at", "left", "turn")

    def __init__(self, left: float, at: float) -> None:
        self.left, self.at = left, at
        self.turn = asyncio.Lock()


class _Sharing:
    """Has Python's threads take shorter turns while any of them does long work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._before = 0, 0.0

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SWITCH_SECONDS))
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)


_sharing = _Sharing()
