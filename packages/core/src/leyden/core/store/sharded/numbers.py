"""`NUMBERS`: the positions of new rows on shards, which order the rows of all shards as one store would.

A position is the Unix time in microseconds at which it was drawn, or one more than the last. Within a process they are
strictly ascending, so its own calls keep their order on whatever shards they write. Between processes, the order is as
exact as their clocks.
"""

import threading
import time


class Numbers:
    """An endless iterator over ascending numbers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __iter__(self) -> "Numbers":
        return self

    def __next__(self) -> int:
        return self.block(1)[0]

    def block(self, count: int) -> range:
        """Return so many consecutive numbers."""
        with self._lock:
            first = max(self._last + 1, time.time_ns() // 1000)
            self._last = first + count - 1
            return range(first, first + count)


NUMBERS = Numbers()
"""Shared by all stores of the process."""
