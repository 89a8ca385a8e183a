"""`Idle`: the seconds in which nothing was going on. Knows nothing of what goes on."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Idle:
    """Adds up the time outside every `busy` block; blocks may overlap. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._seconds, self._since = 0.0, clock()

    @property
    def seconds(self) -> float:
        """So far."""
        return self._seconds + (0.0 if self._open else self._clock() - self._since)

    @contextmanager
    def busy(self) -> Generator[None]:
        """Something goes on inside the block."""
        self._seconds = self.seconds
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._since = self._clock()
