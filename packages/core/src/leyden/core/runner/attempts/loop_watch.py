"""`LoopWatch`: how long the agent's own code has kept the event loop from turning, and where that code is.

A thread looks, because a loop that is blocked cannot look itself. Time in which the loop was late for another reason
does not count: there the thread finds no code of the user's at work twice in a row, or was late itself, as on a machine
that is busy.
"""

import asyncio
import sys
import threading
import time
import traceback

from leyden.core.runner.attempts.error_text import is_library

TURN_SECONDS = 0.1
"""How often the loop shows that it turns, and the thread looks."""
LATE_SECONDS = 0.3
"""A loop that has not turned for so long is blocked."""
SHARE = 0.1
"""What part of an attempt's time the loop must have been blocked for that to be named as a reason."""


class LoopWatch:
    """Watches the running loop between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the loop was blocked by the agent's code so far."""
        self.place = ""
        """File and line that blocked it last."""
        self._turned = time.monotonic()
        self._found = ""
        self._stopped = threading.Event()
        self._turning: asyncio.Task[None] | None = None

    @property
    def sees_code(self) -> bool:
        """Whether the agent's code was seen to block the loop since that turned last."""
        return bool(self._found)

    def start(self) -> None:
        """Begin to watch the loop that runs in this thread."""
        self._turned = time.monotonic()
        self._turning = asyncio.create_task(self._turn())
        watched = threading.get_ident()
        threading.Thread(target=self._look, args=(watched,), name="leyden-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        if self._turning is not None:
            self._turning.cancel()

    def since(self, before: float, limit: float | None) -> str:
        """That the loop was blocked since `seconds` was `before`, for an attempt that ran out of its `limit`.

        It is the rest of a sentence; empty where the loop turned for nearly all of that time.
        """
        self._count()
        blocked = self.seconds - before
        if not limit or blocked < SHARE * limit:
            return ""
        return (
            f"; the worker's event loop was blocked for {blocked:.1f} s meanwhile, by an async agent that makes "
            f"blocking calls ({self.place}): make it a plain `def`, use the async client, or lower --concurrency"
        )

    async def _turn(self) -> None:
        while True:
            self._count()
            await asyncio.sleep(TURN_SECONDS)

    def _count(self) -> None:
        """Note that the loop turns, and add the time in which it did not where the agent was seen to be why."""
        now = time.monotonic()
        late, found = now - self._turned, self._found
        self._turned, self._found = now, ""
        if found and late > LATE_SECONDS:
            self.seconds += late
            self.place = found

    def _look(self, watched: int) -> None:
        looked, seen = time.monotonic(), 0
        while not self._stopped.wait(TURN_SECONDS):
            now = time.monotonic()
            if now - looked > 2 * TURN_SECONDS:  # the whole process stood still
                self._turned, seen = self._turned + now - looked, 0
            looked = now
            is_late = now - self._turned > LATE_SECONDS
            place = _place(watched) if is_late and not self._found else ""
            seen = seen + 1 if place else 0
            if seen > 1:
                self._found = place


def _place(thread: int) -> str:
    """The innermost line of the user's own code that a thread is at; empty where there is none."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # there is no public way
    if frame is None:
        return ""
    calls = [call for call in traceback.walk_stack(frame) if not is_library(call[0].f_code.co_filename)]
    return f"{calls[0][0].f_code.co_filename}, line {calls[0][1]}" if calls else ""
