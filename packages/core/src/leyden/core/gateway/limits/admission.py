"""Admission control: limits how many model calls run at once, and orders the calls that wait.

A call either has a slot (`CallSlot`) or waits for one. There is one common first-in, first-out queue. Each attempt has
a share: the number of its calls that may be in the common queue or in a slot. Further calls of the attempt wait in the
attempt's own queue until one of those calls leaves. So an attempt with a thousand calls delays the next call of another
attempt by at most its share. While other attempts call too, a share is at most `fair_share` or twice their average. The
calls of an attempt then also begin in rounds with those of the others (`Rounds`).

Invariants: never more calls in slots than `max_concurrent`. While the common queue has a call, all slots are taken or
admission is paused. A call that is cancelled leaves no state behind, in whichever queue it is. Belongs to one event
loop.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leyden.core.errors import UsageError
from leyden.core.gateway.limits.rounds import Rounds
from leyden.core.gateway.refusal import Refusal, retry_after

LONGEST_RETRY = 60.0
"""Largest `retry-after` in seconds; clients ignore longer ones."""
RECENT_SECONDS = 2.0
"""Seconds for which an attempt without a call still counts as active: it is most likely between two calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of admission control. With the defaults, a thousand agents with a few calls each wait and do not fail."""

    max_concurrent: int = 256
    """Calls that run at once; the engine forms its own batches from them."""
    max_per_attempt: int = 64
    """Calls of one attempt that run or wait in the common queue."""
    fair_share: int = 8
    """Share of an attempt while other attempts are active; twice the others' average if that is more."""
    max_waiting_per_attempt: int = 1024
    """Calls of one attempt that wait beyond its share; further calls of this attempt are refused."""
    max_waiting: int = 4096
    max_wait_seconds: float = 480.0
    """Seconds a call may wait; less than the ten minutes that OpenAI's clients wait for a first byte."""
    rate: float | None = None
    """Calls per second; calls beyond the rate are refused, not delayed. None for no limit."""
    burst: int = 1
    """Calls that may come at once after an idle time; used only with `rate`."""

    def __post_init__(self) -> None:
        for name in ("max_concurrent", "max_per_attempt", "fair_share", "burst"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if min(self.max_waiting, self.max_waiting_per_attempt) < 0 or self.max_wait_seconds <= 0:
            raise UsageError("max_waiting and max_waiting_per_attempt must be at least 0 and max_wait_seconds above 0")
        if self.rate is not None and self.rate <= 0:
            raise UsageError(f"rate must be above 0 calls a second, or None for any, not {self.rate}")


class AdmissionControl:
    """Admission control within `limits`; `clock` returns seconds."""

    def __init__(self, limits: AdmissionLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or AdmissionLimits()
        self._clock = clock
        self._bucket = None if self._limits.rate is None else _Bucket(self._limits.rate, self._limits.burst, clock)
        self._running = self._waiting = 0
        self._paused = False
        self._queue: OrderedDict[_QueuedCall, None] = OrderedDict()
        self._attempts: dict[str, _Attempt] = {}
        self._recent: OrderedDict[str, float] = OrderedDict()
        """Time of the last call of each attempt, the oldest first."""
        self._recent_until = 0.0
        """Time before which no attempt has to be dropped from `_recent`."""
        self._rounds = Rounds()
        self._drains: list[asyncio.Future[None]] = []
        self._average_seconds = 0.0
        """Moving average of the seconds that a call holds its slot."""

    @property
    def running(self) -> int:
        """Number of calls that have a slot."""
        return self._running

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a slot."""
        return self._waiting

    @property
    def paused(self) -> bool:
        """Whether admission is paused: no waiting call gets a slot."""
        return self._paused

    async def acquire(self, attempt_id: str) -> "CallSlot":
        """Wait for a slot for one call of an attempt; return the slot as a context manager that frees it.

        Raises Refusal with status 429 if too many calls wait or the rate is exceeded. Raises Refusal with status 503 if
        the call waits longer than `max_wait_seconds`.
        """
        if len(self._recent) > 1 and (begins := self._rounds.enter(attempt_id)) is not None:
            await begins
        queued = self._enter(attempt_id)
        if queued is not None:
            await self._wait(queued)
        return CallSlot(self, attempt_id, self._clock())

    def release(self, slot: "CallSlot") -> None:
        """Free the slot of a call that has ended, and admit the next call. Call it once for each slot."""
        seconds = self._clock() - slot.since
        self._average_seconds += (seconds - self._average_seconds) / 16
        self._leave(slot.attempt_id)

    def pause(self) -> None:
        """Stop admitting calls: new calls wait, and running calls keep their slots."""
        self._paused = True

    def resume(self) -> None:
        """Admit calls again, first those that have waited."""
        self._paused = False
        self._advance()

    async def drain(self) -> None:
        """Return when no call has a slot; without a prior `pause` this may never happen."""
        while self._running:
            done = asyncio.get_running_loop().create_future()
            self._drains.append(done)
            await done

    @asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """Pause and drain, and resume when the block ends; only one caller at a time may use it."""
        self.pause()
        try:
            await self.drain()
            yield
        finally:
            self.resume()

    # --- Steps of one call

    def _enter(self, attempt_id: str) -> "_QueuedCall | None":
        """Return None if the call got a slot, else its entry in a queue; raises Refusal with status 429."""
        limits = self._limits
        attempt = self._attempts.get(attempt_id) or _Attempt()
        self._note_call(attempt_id)
        if attempt.own_queue:  # the share may have grown since these calls were queued
            self._fill_share(attempt)
            self._advance()
        joins_queue = not attempt.own_queue and (not attempt.share or attempt.share < self._share(attempt))
        at_once = joins_queue and not self._paused and self._running < limits.max_concurrent
        if not at_once and self._waiting >= limits.max_waiting:
            raise _too_many("Too many requests are waiting.", "too_many_waiting", self._expected_wait())
        if len(attempt.own_queue) >= limits.max_waiting_per_attempt and not joins_queue:
            message = "Too many requests of this attempt are waiting."
            raise _too_many(message, "too_many_waiting", self._expected_wait())
        if self._bucket is not None and (seconds := self._bucket.take()) > 0:
            raise _too_many("Too many requests a second.", "rate_limit_exceeded", seconds)
        if joins_queue:
            self._attempts[attempt_id] = attempt
            attempt.share += 1
        if at_once:
            self._running += 1
            return None
        queued = _QueuedCall(attempt_id, asyncio.get_running_loop().create_future())
        (self._queue if joins_queue else attempt.own_queue)[queued] = None
        self._waiting += 1
        return queued

    async def _wait(self, queued: "_QueuedCall") -> None:
        """Return when the queued call gets a slot; raises Refusal with status 503 if that takes too long."""
        try:
            await asyncio.wait([queued.admitted], timeout=self._limits.max_wait_seconds)
        except asyncio.CancelledError:
            self._give_up(queued)
            raise
        if not queued.admitted.done():
            self._give_up(queued)
            message = f"The request has waited {self._limits.max_wait_seconds:g} seconds for its turn."
            advice = retry_after(self._expected_wait())
            raise Refusal(503, message, type="server_error", code="overloaded", headers=advice)

    def _give_up(self, queued: "_QueuedCall") -> None:
        """Remove a call that stopped waiting from its queue, or free the slot that it got meanwhile."""
        if queued.admitted.done():
            self._leave(queued.attempt_id)
            return
        self._waiting -= 1
        if queued in self._queue:
            del self._queue[queued]
            self._lower_share(queued.attempt_id)
        else:
            del self._attempts[queued.attempt_id].own_queue[queued]

    def _leave(self, attempt_id: str) -> None:
        """Free a slot and admit the next call."""
        self._running -= 1
        self._lower_share(attempt_id)
        self._advance()
        if not self._running:
            drains, self._drains = self._drains, []
            for done in drains:
                if not done.done():
                    done.set_result(None)

    def _lower_share(self, attempt_id: str) -> None:
        """Lower the attempt's count after a call left the common queue or its slot, and let its next call join."""
        attempt = self._attempts[attempt_id]
        self._note_call(attempt_id)
        attempt.share -= 1
        self._fill_share(attempt)
        if not attempt.share:
            del self._attempts[attempt_id]

    def _fill_share(self, attempt: "_Attempt") -> None:
        while attempt.own_queue and attempt.share < self._share(attempt):
            next_call, _ = attempt.own_queue.popitem(last=False)
            self._queue[next_call] = None
            attempt.share += 1

    def _note_call(self, attempt_id: str) -> None:
        """Record the time of an attempt's call, and drop attempts without a call in the last `RECENT_SECONDS`."""
        now = self._clock()
        self._recent[attempt_id] = now
        self._recent.move_to_end(attempt_id)
        if now > self._recent_until:
            while next(iter(self._recent.values())) < now - RECENT_SECONDS:
                self._recent.popitem(last=False)
            self._recent_until = next(iter(self._recent.values())) + RECENT_SECONDS

    def _share(self, attempt: "_Attempt") -> int:
        """Return how many calls of an attempt may be in the common queue or in a slot; at least 1."""
        maximum = self._limits.max_per_attempt
        other_attempts = max(len(self._attempts) - bool(attempt.share), len(self._recent) - 1)
        if other_attempts < 1:
            return maximum
        calls_of_others = self._running + len(self._queue) - attempt.share
        return min(maximum, max(self._limits.fair_share, 2 * calls_of_others // other_attempts))

    def _advance(self) -> None:
        while self._queue and not self._paused and self._running < self._limits.max_concurrent:
            next_call, _ = self._queue.popitem(last=False)
            self._waiting -= 1
            self._running += 1
            next_call.admitted.set_result(None)

    def _expected_wait(self) -> float:
        return min(self._average_seconds * self._waiting / self._limits.max_concurrent, LONGEST_RETRY)


@dataclass(slots=True, eq=False)
class CallSlot:
    """Slot of a running call, as a context manager: enter it at once; the end of its block frees the slot."""

    admission: AdmissionControl
    attempt_id: str
    since: float

    def __enter__(self) -> None:
        """Enter the block; the slot is already taken."""

    def __exit__(self, *_: object) -> None:
        self.admission.release(self)


@dataclass(frozen=True, slots=True, eq=False)
class _QueuedCall:
    """Queue entry of a waiting call."""

    attempt_id: str
    admitted: "asyncio.Future[None]"
    """Done when the call has a slot."""


class _Attempt:
    """Calls of one attempt that run or wait."""

    __slots__ = ("own_queue", "share")

    def __init__(self) -> None:
        self.share = 0
        """Number of calls in the common queue or in a slot."""
        self.own_queue: OrderedDict[_QueuedCall, None] = OrderedDict()
        """The attempt's own queue: its further calls, in order."""


class _Bucket:
    """Token bucket: has room for `burst` calls and refills at `rate` calls per second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._level, self._updated_at = float(burst), clock()

    def take(self) -> float:
        """Take one call and return 0; if the bucket is empty, take none and return the seconds until one is free."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._level < 1:
            return (1 - self._level) / self._rate
        self._level -= 1
        return 0.0


def _too_many(message: str, code: str, seconds: float) -> Refusal:
    return Refusal(429, message, type="requests", code=code, headers=retry_after(seconds))
