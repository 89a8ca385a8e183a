"""Idle timer: `IdleTimer` measures the seconds without any activity."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class IdleTimer:
    """Adds up the time outside all `busy` blocks, which may overlap. Use it from one event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._seconds, self._since = 0.0, clock()

    @property
    def seconds(self) -> float:
        """Idle time so far, in seconds."""
        return self._seconds + (0.0 if self._open else self._clock() - self._since)

    @contextmanager
    def busy(self) -> Generator[None]:
        """Context manager that marks its block as activity."""
        self._seconds = self.seconds
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._since = self._clock()
