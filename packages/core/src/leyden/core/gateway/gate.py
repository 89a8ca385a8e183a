"""`Gate`: how many calls are answered at once, and in which order the others wait. Knows nothing of what a call is.

A call has a place or waits for one. There is one line for all, first come, first served; an attempt may have only so
many calls in it or past it, and its further calls wait in a line of its own until one of those has left. So an attempt
with a thousand calls delays another's next call by at most its share. While others call too, its share is not much
larger than theirs, and its calls begin in rounds with theirs (`Rounds`).

Invariants: never more places than `max_concurrent`; while anybody is in the common line, all places are taken or the
gate is paused; a call that gives up, wherever it stands, leaves nothing behind. Belongs to one event loop.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leyden.core.errors import UsageError
from leyden.core.gateway.refusal import Refusal, retry_after
from leyden.core.gateway.rounds import Rounds

LONGEST_RETRY = 60.0
"""Seconds; clients ignore longer advice."""
RECENT_SECONDS = 2.0
"""How long an attempt without a call counts among the others: most are between two calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """How much is let through. The defaults let a thousand agents with a few calls each wait, not fail."""

    max_concurrent: int = 256
    """Calls that are answered at once; the engine makes its own batches of them."""
    max_per_attempt: int = 64
    """Of one attempt, answered or in the common line."""
    fair_share: int = 8
    """Of an attempt, while others call as well or have just done so; or twice their average, if that is more."""
    max_waiting_per_attempt: int = 1024
    """Beyond its share; more are refused while others still may wait."""
    max_waiting: int = 4096
    max_wait_seconds: float = 480.0
    """Less than the ten minutes that OpenAI's clients wait for a first byte."""
    rate: float | None = None
    """Calls a second; those beyond it are refused, not delayed."""
    burst: int = 1
    """Calls that may come at once after a quiet time, where there is a rate."""

    def __post_init__(self) -> None:
        for name in ("max_concurrent", "max_per_attempt", "fair_share", "burst"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if min(self.max_waiting, self.max_waiting_per_attempt) < 0 or self.max_wait_seconds <= 0:
            raise UsageError("max_waiting and max_waiting_per_attempt must be at least 0 and max_wait_seconds above 0")
        if self.rate is not None and self.rate <= 0:
            raise UsageError(f"rate must be above 0 calls a second, or None for any, not {self.rate}")


class Gate:
    """Lets calls through within `limits`; `clock` gives seconds."""

    def __init__(self, limits: GateLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or GateLimits()
        self._clock = clock
        self._bucket = None if self._limits.rate is None else _Bucket(self._limits.rate, self._limits.burst, clock)
        self._running = self._waiting = 0
        self._paused = False
        self._line: OrderedDict[_Turn, None] = OrderedDict()
        self._attempts: dict[str, _Attempt] = {}
        self._recent: OrderedDict[str, float] = OrderedDict()
        """When each attempt called last, the oldest first."""
        self._rounds = Rounds()
        self._drains: list[asyncio.Future[None]] = []
        self._held = 0.0
        """How long a place is held, in seconds: a moving average."""

    @property
    def running(self) -> int:
        """Calls that have a place."""
        return self._running

    @property
    def waiting(self) -> int:
        """Calls that wait for one."""
        return self._waiting

    @property
    def paused(self) -> bool:
        """Whether no call is given a place for now."""
        return self._paused

    async def place(self, attempt_id: str) -> "Place":
        """Wait for a place for one call of an attempt, which holds it `with` what is returned.

        Raises Refusal with status 429 where too many wait or come a second, and 503 where the wait is too long.
        """
        if len(self._recent) > 1:
            await self._rounds.turn(attempt_id)
        turn = self._enter(attempt_id)
        if turn is not None:
            await self._wait(turn)
        return Place(self, attempt_id, self._clock())

    def give_back(self, place: "Place") -> None:
        """Give the place of a call that has ended to the next; once."""
        held = self._clock() - place.since
        self._held += (held - self._held) / 16
        self._leave(place.attempt_id)

    def pause(self) -> None:
        """Give no more places; calls that arrive wait, those that have a place keep it."""
        self._paused = True

    def resume(self) -> None:
        """Give places again, first to those that have waited."""
        self._paused = False
        self._advance()

    async def drain(self) -> None:
        """Return when no call has a place; without a pause this is a moment that may never come."""
        while self._running:
            done = asyncio.get_running_loop().create_future()
            self._drains.append(done)
            await done

    @asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """Pause and drain, and resume when the block ends; for one owner at a time."""
        self.pause()
        try:
            await self.drain()
            yield
        finally:
            self.resume()

    # --- One call's way

    def _enter(self, attempt_id: str) -> "_Turn | None":
        """Take a place, or a turn to wait for; raises Refusal with status 429."""
        limits = self._limits
        attempt = self._attempts.get(attempt_id) or _Attempt()
        self._note(attempt_id)
        if attempt.own:  # others may be fewer, or busier, than when these came
            self._fill(attempt)
            self._advance()
        joins = not attempt.own and attempt.share < self._share(attempt)
        at_once = joins and not self._paused and self._running < limits.max_concurrent
        if not at_once and self._waiting >= limits.max_waiting:
            raise _too_many("Too many requests are waiting.", "too_many_waiting", self._expected_wait())
        if len(attempt.own) >= limits.max_waiting_per_attempt and not joins:
            message = "Too many requests of this attempt are waiting."
            raise _too_many(message, "too_many_waiting", self._expected_wait())
        if self._bucket is not None and (seconds := self._bucket.take()) > 0:
            raise _too_many("Too many requests a second.", "rate_limit_exceeded", seconds)
        if joins:
            self._attempts[attempt_id] = attempt
            attempt.share += 1
        if at_once:
            self._running += 1
            return None
        turn = _Turn(attempt_id, asyncio.get_running_loop().create_future())
        (self._line if joins else attempt.own)[turn] = None
        self._waiting += 1
        return turn

    async def _wait(self, turn: "_Turn") -> None:
        """Return when it is `turn`'s turn; raises Refusal with status 503 when that takes too long."""
        try:
            await asyncio.wait([turn.given], timeout=self._limits.max_wait_seconds)
        except asyncio.CancelledError:
            self._give_up(turn)
            raise
        if not turn.given.done():
            self._give_up(turn)
            message = f"The request has waited {self._limits.max_wait_seconds:g} seconds for its turn."
            advice = retry_after(self._expected_wait())
            raise Refusal(503, message, type="server_error", code="overloaded", headers=advice)

    def _give_up(self, turn: "_Turn") -> None:
        """Take a call that no longer waits out of its line, or out of the place that it was given meanwhile."""
        if turn.given.done():
            self._leave(turn.attempt_id)
            return
        self._waiting -= 1
        if turn in self._line:
            del self._line[turn]
            self._part(turn.attempt_id)
        else:
            del self._attempts[turn.attempt_id].own[turn]

    def _leave(self, attempt_id: str) -> None:
        """Take a place back and give it to the next."""
        self._running -= 1
        self._part(attempt_id)
        self._advance()
        if not self._running:
            drains, self._drains = self._drains, []
            for done in drains:
                if not done.done():
                    done.set_result(None)

    def _part(self, attempt_id: str) -> None:
        """One call of an attempt is out of the common line and of its place: the next of its own line may join."""
        attempt = self._attempts[attempt_id]
        self._note(attempt_id)
        attempt.share -= 1
        self._fill(attempt)
        if not attempt.share:
            del self._attempts[attempt_id]

    def _fill(self, attempt: "_Attempt") -> None:
        while attempt.own and attempt.share < self._share(attempt):
            following, _ = attempt.own.popitem(last=False)
            self._line[following] = None
            attempt.share += 1

    def _note(self, attempt_id: str) -> None:
        """Remember that an attempt calls, and forget those that have not called for a while."""
        now = self._clock()
        self._recent[attempt_id] = now
        self._recent.move_to_end(attempt_id)
        while self._recent and next(iter(self._recent.values())) < now - RECENT_SECONDS:
            self._recent.popitem(last=False)

    def _share(self, attempt: "_Attempt") -> int:
        """How many calls of an attempt may be in the common line or in a place, at least one."""
        most = self._limits.max_per_attempt
        others = max(len(self._attempts) - bool(attempt.share), len(self._recent) - 1)
        if others < 1:
            return most
        theirs = self._running + len(self._line) - attempt.share
        return min(most, max(self._limits.fair_share, 2 * theirs // others))

    def _advance(self) -> None:
        while self._line and not self._paused and self._running < self._limits.max_concurrent:
            following, _ = self._line.popitem(last=False)
            self._waiting -= 1
            self._running += 1
            following.given.set_result(None)

    def _expected_wait(self) -> float:
        return min(self._held * self._waiting / self._limits.max_concurrent, LONGEST_RETRY)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """What a call holds while it is answered: to be entered at once, and given back at the end of its block."""

    gate: Gate
    attempt_id: str
    since: float

    def __enter__(self) -> None:
        """Hold it."""

    def __exit__(self, *_: object) -> None:
        self.gate.give_back(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A call that waits."""

    attempt_id: str
    given: "asyncio.Future[None]"
    """Done when it has a place."""


class _Attempt:
    """The calls of one attempt."""

    __slots__ = ("own", "share")

    def __init__(self) -> None:
        self.share = 0
        """Calls in the common line or in a place."""
        self.own: OrderedDict[_Turn, None] = OrderedDict()
        """Calls beyond that, in order."""


class _Bucket:
    """Holds up to `burst` calls and fills at `rate` a second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._level, self._at = float(burst), clock()

    def take(self) -> float:
        """Take one call; return 0, or without taking it the seconds until there is one."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return (1 - self._level) / self._rate
        self._level -= 1
        return 0.0


def _too_many(message: str, code: str, seconds: float) -> Refusal:
    return Refusal(429, message, type="requests", code=code, headers=retry_after(seconds))
