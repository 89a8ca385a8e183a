"""`LoopWatch`: measures how long the agent's own code has blocked the event loop, and finds that code.

A thread does the measuring, because a blocked loop cannot measure itself. Time in which the loop was late for another
reason does not count. There the thread does not find user code running twice in a row, or the thread was late itself,
as on a busy machine.
"""

import asyncio
import sys
import threading
import time
import traceback

from leyden.core.runner.attempts.error_text import is_library

TURN_SECONDS = 0.1
"""Interval at which the loop records that it runs and the thread looks."""
LATE_SECONDS = 0.3
"""A loop that has not run its callback for this long counts as blocked."""
SHARE = 0.1
"""Smallest share of an attempt's time limit for which a blocked loop is named as a reason."""


class LoopWatch:
    """Watches the event loop of the thread that calls `start`, until `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the agent's code has blocked the loop so far."""
        self.location = ""
        """File and line that blocked the loop last."""
        self._ticked_at = time.monotonic()
        self._found = ""
        self._stopped = threading.Event()
        self._ticking: asyncio.Task[None] | None = None

    @property
    def sees_code(self) -> bool:
        """Whether the thread found agent code that blocks the loop since the loop last ran."""
        return bool(self._found)

    def start(self) -> None:
        """Begin to watch the loop of this thread."""
        self._ticked_at = time.monotonic()
        self._ticking = asyncio.create_task(self._tick())
        thread_id = threading.get_ident()
        threading.Thread(target=self._watch, args=(thread_id,), name="leyden-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._ticking is not None:
            self._ticking.cancel()

    def since(self, before: float, limit: float | None) -> str:
        """Return the end of a message: how long the loop was blocked since `seconds` was `before`.

        `limit` is the attempt's time limit in seconds. Empty where the loop was blocked for less than `SHARE` of it.
        """
        self._count()
        blocked = self.seconds - before
        if not limit or blocked < SHARE * limit:
            return ""
        return (
            f"; meanwhile the worker's event loop was blocked for {blocked:.1f} s by an async agent that makes "
            f"blocking calls ({self.location}): make it a plain `def`, use the async client, or lower --concurrency"
        )

    async def _tick(self) -> None:
        while True:
            self._count()
            await asyncio.sleep(TURN_SECONDS)

    def _count(self) -> None:
        """Record that the loop runs. Add the time since it last ran if agent code was found to block it."""
        now = time.monotonic()
        late, found = now - self._ticked_at, self._found
        self._ticked_at, self._found = now, ""
        if found and late > LATE_SECONDS:
            self.seconds += late
            self.location = found

    def _watch(self, thread_id: int) -> None:
        last_look, sightings = time.monotonic(), 0
        while not self._stopped.wait(TURN_SECONDS):
            now = time.monotonic()
            if now - last_look > 2 * TURN_SECONDS:  # the whole process was paused
                self._ticked_at, sightings = self._ticked_at + now - last_look, 0
            last_look = now
            is_late = now - self._ticked_at > LATE_SECONDS
            location = _location(thread_id) if is_late and not self._found else ""
            sightings = sightings + 1 if location else 0
            if sightings > 1:
                self._found = location


def _location(thread: int) -> str:
    """Return file and line of the innermost user code that a thread executes. Empty where there is none."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # there is no public way
    if frame is None:
        return ""
    calls = [call for call in traceback.walk_stack(frame) if not is_library(call[0].f_code.co_filename)]
    return f"{calls[0][0].f_code.co_filename}, line {calls[0][1]}" if calls else ""
