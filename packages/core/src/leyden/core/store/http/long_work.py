"""`FairScheduler`: runs long work of a store's server on threads, in turns between the senders.

The work of one token is done piece by piece, and each agent waits for its turn with one piece. Whatever one agent
sends, the next piece is another agent's. Trainers have a separate queue. While others send requests, an agent pauses
after its work for `PAUSES` times its duration. Work that holds the interpreter's lock therefore delays few requests of
others.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from leyden.core.store.http.refused import Refused

T = TypeVar("T")

LARGE = 64 << 10
"""Bytes of a body from which work on it counts as long."""
PAUSES = 20.0
"""Seconds of pause for each second of work."""
CREDIT = 2.0
"""Seconds of pause that are not waited for, so that a few large requests are processed at once."""
LONGEST_PAUSE = 5.0
"""Longest pause in seconds; less than the time for which clients wait for an answer."""
ACTIVE_SECONDS = 1.0
"""Seconds after a request for which its sender counts as active."""
WRITE_SECONDS = 25e-6
"""Approximate time to write a span."""
_YIELD_SECONDS = 1e-4
_on_thread = threading.local()


class Sender:
    """The holder of one token; all trainers together are one sender."""

    def __init__(self, group_lock: asyncio.Lock, *, pauses: bool) -> None:
        self.piece = asyncio.Lock()
        """Held by the piece of work that waits for its turn or runs."""
        self.group_lock, self._pauses = group_lock, pauses
        self._pause_until = 0.0

    def charge(self, seconds: float, now: float) -> None:
        """Count work that was done."""
        if self._pauses:
            self._pause_until = min(max(self._pause_until, now) + PAUSES * seconds, now + CREDIT + LONGEST_PAUSE)

    def pause(self, now: float) -> float:
        """Return the seconds until this sender may work again, while others are active."""
        return max(self._pause_until - CREDIT - now, 0.0)

    def has_pause_left(self, now: float) -> bool:
        """Whether some of its pause is still to come."""
        return self._pause_until > now


class FairScheduler:
    """Order of the senders' work. Used on one event loop only; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._trainers, self._agents = asyncio.Lock(), asyncio.Lock()
        self._latest: tuple[Sender | None, float] = (None, float("-inf"))
        self._latest_other = self._latest
        """Sender and time of the latest request, and of the latest request of another sender."""

    def sender(self, *, agent: bool) -> Sender:
        """Return a new sender."""
        return Sender(self._agents if agent else self._trainers, pauses=agent)

    def note(self, sender: Sender) -> None:
        """Record that a request of the sender has arrived."""
        if self._latest[0] is not sender:
            self._latest_other = self._latest
        self._latest = (sender, self.clock())

    def others_send(self, sender: Sender) -> bool:
        """Whether requests of other senders have arrived within `ACTIVE_SECONDS`."""
        other = self._latest_other if self._latest[0] is sender else self._latest
        return self.clock() - other[1] <= ACTIVE_SECONDS

    async def do(self, sender: Sender, work: Callable[[], T]) -> T:
        """Run `work` on a thread, in the sender's turn, and return its result."""
        async with sender.piece:
            while (pause := sender.pause(self.clock())) > 0 and self.others_send(sender):
                await asyncio.sleep(min(pause, ACTIVE_SECONDS))
            async with sender.group_lock:
                result, refused, seconds = await asyncio.to_thread(_timed, work)
        sender.charge(seconds, self.clock())
        if refused is not None:
            raise refused
        return result  # pyright: ignore[reportReturnType]  # `refused` is None, so there is a result


def yield_to_threads() -> None:
    """Let other threads run; work in Python calls this about once a millisecond.

    Without it, the event loop waits five milliseconds for the interpreter's lock, many times in each request. Does
    nothing on the event loop's own thread.
    """
    if getattr(_on_thread, "works", False):
        time.sleep(_YIELD_SECONDS)


def _timed(work: Callable[[], T]) -> tuple[T | None, Refused | None, float]:
    """Do the work; return its result or its refusal, with the seconds of CPU time that it took."""
    began, _on_thread.works = time.thread_time(), True
    try:
        return work(), None, time.thread_time() - began
    except Refused as refused:
        return None, refused, time.thread_time() - began
    finally:
        _on_thread.works = False
