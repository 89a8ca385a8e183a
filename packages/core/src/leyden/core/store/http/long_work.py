"""`Turns`: work of a store's server that takes long, on other threads, by one sender after the other.

Work of one token is done piece by piece, and each agent waits for its turn with one piece: however much one of them
sends, the next piece is another's. Trainers have a lane of their own. While others send, an agent pauses after its work
for `PAUSES` times as long as it took, so that work that holds the interpreter makes few requests of others wait. Knows
nothing of requests.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from leyden.core.store.http.refused import Refused

T = TypeVar("T")

LARGE = 64 << 10
"""Bytes of a body from which on work on it takes long."""
PAUSES = 20.0
"""Seconds of pause for each second of work."""
CREDIT = 2.0
"""Seconds of pause that are left out: a few large requests are worked on at once."""
LONGEST_PAUSE = 5.0
"""Seconds; less than clients wait for an answer."""
ACTIVE_SECONDS = 1.0
"""For so long after a request its sender counts as one who sends."""
WRITE_SECONDS = 25e-6
"""About what it takes to write a span."""
_LET_GO_SECONDS = 1e-4
_on_thread = threading.local()


class Sender:
    """Whoever has one token; all trainers are one."""

    def __init__(self, lane: asyncio.Lock, *, pauses: bool) -> None:
        self.piece = asyncio.Lock()
        """Held by the piece that waits for its turn or has it."""
        self.lane, self._pauses = lane, pauses
        self._owes_until = 0.0

    def charge(self, seconds: float, now: float) -> None:
        """Count work that was done."""
        if self._pauses:
            self._owes_until = min(max(self._owes_until, now) + PAUSES * seconds, now + CREDIT + LONGEST_PAUSE)

    def pause(self, now: float) -> float:
        """Seconds until it may work again, while others send."""
        return max(self._owes_until - CREDIT - now, 0.0)

    def owes(self, now: float) -> bool:
        """Whether anything of its work is not forgotten yet."""
        return self._owes_until > now


class Turns:
    """Belongs to one event loop; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._trainers, self._agents = asyncio.Lock(), asyncio.Lock()
        self._latest: tuple[Sender | None, float] = (None, float("-inf"))
        self._before = self._latest
        """The latest request, and the latest of another sender."""

    def sender(self, *, agent: bool) -> Sender:
        """Return a new sender."""
        return Sender(self._agents if agent else self._trainers, pauses=agent)

    def note(self, sender: Sender) -> None:
        """Note that a request of the sender has come."""
        if self._latest[0] is not sender:
            self._before = self._latest
        self._latest = (sender, self.clock())

    def others_send(self, sender: Sender) -> bool:
        """Whether requests of others have come lately."""
        other = self._before if self._latest[0] is sender else self._latest
        return self.clock() - other[1] <= ACTIVE_SECONDS

    async def do(self, sender: Sender, work: Callable[[], T]) -> T:
        """Return what `work` returns, done on a thread when it is the sender's turn."""
        async with sender.piece:
            while (pause := sender.pause(self.clock())) > 0 and self.others_send(sender):
                await asyncio.sleep(min(pause, ACTIVE_SECONDS))
            async with sender.lane:
                result, refused, seconds = await asyncio.to_thread(_timed, work)
        sender.charge(seconds, self.clock())
        if refused is not None:
            raise refused
        return result  # pyright: ignore[reportReturnType]  # there is one, or a refusal


def let_go() -> None:
    """Let other threads have the interpreter: to be called by work in Python once a millisecond or so.

    Without it the event loop waits five milliseconds for the interpreter, many times in each request. Does nothing on
    the event loop's own thread.
    """
    if getattr(_on_thread, "works", False):
        time.sleep(_LET_GO_SECONDS)


def _timed(work: Callable[[], T]) -> tuple[T | None, Refused | None, float]:
    """Do the work; returns with it the seconds of CPU time that it took, also where it ends in a refusal."""
    began, _on_thread.works = time.thread_time(), True
    try:
        return work(), None, time.thread_time() - began
    except Refused as refused:
        return None, refused, time.thread_time() - began
    finally:
        _on_thread.works = False
