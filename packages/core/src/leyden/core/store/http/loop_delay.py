"""`LoopDelay`: for how long an event loop was kept from running what was due, for timeouts that must not count that."""

import asyncio
import time

TICK_SECONDS = 0.25
"""How often the delay is measured; a shorter one may go unnoticed."""


class LoopDelay:
    """Measures the delay of one event loop inside `with` blocks, of which any number may be open at once.

    A timer of asyncio fires when its time has passed, even where the loop was blocked all the while and has not read
    the answer that lies in its socket. Such a timeout says nothing about the server.
    """

    def __init__(self) -> None:
        self._measured = 0.0
        self._due = 0.0
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """The delay measured so far."""
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
