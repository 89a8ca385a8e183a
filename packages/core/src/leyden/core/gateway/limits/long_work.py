"""`LongWork`: parses and encodes long requests on threads, one request at a time for each attempt.

Short requests are processed on the event loop, because a thread would cost more than the work. While a thread
processes the long request of one attempt, the event loop serves other calls. A second long request of the same attempt
waits. Long requests of an attempt that has used more than its share of CPU time are refused until it has earned more.
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
from leyden.core.gateway.codecs.chat_template import MOST_STEPS, Steps, TemplateTooLong, limited
from leyden.core.gateway.refusal import Refusal, retry_after

T = TypeVar("T")

REMEMBERED = 4096
"""Number of attempts whose CPU time is remembered; of the idle ones, the least recently used is dropped first."""
_SWITCH_SECONDS = 0.0005
"""Thread switch interval during long work: the seconds that such a thread may keep the interpreter lock.

Python's default is ten times as long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """Limits that define long work, and limits on the CPU time of an attempt."""

    inline_bytes: int = 8 << 10
    """Bytes of text; longer text is processed on a thread."""
    inline_steps: int = 2_000
    """Steps of a chat template on the event loop; a template that needs more starts again on a thread."""
    steps: int = MOST_STEPS
    template_seconds: float = 20.0
    cpu_seconds: float = 60.0
    """Seconds of CPU time that an attempt may use at once after an idle time."""
    cpu_rate: float = 0.5
    """Seconds of CPU time that an attempt earns per second."""
    threads: int = max(2, min(4, os.cpu_count() or 1))

    def __post_init__(self) -> None:
        for name in ("template_seconds", "cpu_seconds", "cpu_rate"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.inline_bytes < 0 or self.threads < 1 or self.inline_steps < 0 or self.steps < 1:
            raise UsageError("inline_bytes and inline_steps must be at least 0, steps and threads at least 1")


class LongWork:
    """Runs long work for one event loop; `clock` returns seconds, `cpu_clock` the calling thread's CPU seconds."""

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

    def request(self, attempt_id: str) -> "RequestWork":
        """Return the object that runs the long work of one request; the caller must free it."""
        return RequestWork(self, attempt_id)

    async def aclose(self) -> None:
        """Wait for running work, and end the threads."""
        if self._running:
            await asyncio.wait([*self._running])
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def account(self, attempt_id: str) -> "_Account":
        """Return the CPU account of an attempt, after adding the CPU time earned since its last use."""
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
        """Run `call` on a thread within `steps`, and charge its CPU time to the account; return its future."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.limits.threads, "leyden long work")
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, account, steps, call)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: "asyncio.Future[Any]") -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # marks it as retrieved, also where no caller awaits the future any more

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


class RequestWork:
    """Runs the long work of one request.

    It takes the attempt's lock when the request first has long work, and holds the lock until it is freed.
    """

    def __init__(self, work: LongWork, attempt_id: str) -> None:
        self._work, self._attempt_id = work, attempt_id
        self._account: _Account | None = None
        self._job: asyncio.Future[Any] | None = None

    def __enter__(self) -> "RequestWork":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    async def take(self, size: int) -> None:
        """Wait for the attempt's lock if `size` bytes of text are long work.

        Raises Refusal with status 429 if the attempt has used up its CPU time.
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
        """Run `call`, which processes `size` bytes of text and renders no chat template; return its result.

        Raises the exceptions of `call`, and Refusal with status 429 if the attempt has used up its CPU time.
        """
        return call() if size <= self._work.limits.inline_bytes else await self.run_on_thread(call)

    async def render(self, size: int, call: Callable[[], T]) -> T:
        """Run `call`, which renders a chat template with `size` bytes of text; return its result.

        Raises what `run` raises, and TemplateTooLong.
        """
        limits = self._work.limits
        if size <= limits.inline_bytes:
            try:
                with limited(Steps(limits.inline_steps)):
                    return call()
            except TemplateTooLong:  # a short text, and many steps
                pass
        return await self.run_on_thread(call)

    async def run_on_thread(self, call: Callable[[], T]) -> T:
        """Run `call` on a thread, for work whose time does not follow from its size; raises what `run` raises."""
        limits = self._work.limits
        await self.take(limits.inline_bytes + 1)
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
        """Release the attempt's lock as soon as the thread has finished the work of this request."""
        account, job = self._account, self._job
        self._account = self._job = None
        if account is None:
            return
        if job is None or job.done():
            account.turn.release()
        else:
            job.add_done_callback(lambda _: account.turn.release())


class _Account:
    """Lock and remaining CPU time of one attempt."""

    __slots__ = ("at", "left", "turn")

    def __init__(self, left: float, at: float) -> None:
        self.left, self.at = left, at
        self.turn = asyncio.Lock()


class _SwitchInterval:
    """Shortens Python's thread switch interval while any thread does long work."""

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


_sharing = _SwitchInterval()
