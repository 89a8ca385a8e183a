"""`LoopDelay`: measures how long an event loop was blocked, for timeouts that must not count that time."""

import asyncio
import time

TICK_SECONDS = 0.25
"""Interval of the measurement; a shorter delay may not be measured."""


class LoopDelay:
    """Measures the delay of one event loop inside `with` blocks, which may overlap.

    A timer of asyncio fires after its time, even where the loop was blocked and has not read an answer in its socket.
    Such a timeout is no evidence about the server.
    """

    def __init__(self) -> None:
        self._measured = 0.0
        self._due = 0.0
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds of delay measured so far."""
        return self._measured + self._late()

    def __enter__(self) -> None:
        self._open += 1
        if self._timer is None:
            self._tick_later()

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> float:
        return 0.0 if self._timer is None else max(time.monotonic() - self._due, 0.0)

    def _tick_later(self) -> None:
        self._due = time.monotonic() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._measured += self._late()
        self._tick_later()
