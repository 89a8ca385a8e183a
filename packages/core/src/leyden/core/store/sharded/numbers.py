"""`NUMBERS`: the positions of new rows on shards, which order the rows of all shards as one store would.

A position is the Unix time in microseconds at which it was drawn, or one more than the last. Within a process they are
strictly ascending, so its own calls keep their order on whatever shards they write. Between processes, the order is as
exact as their clocks.
"""

import threading
import time
from collections.abc import Callable, Sequence

FIRST = 10**15
"""No position on a shard is smaller. Those of a store on its own begin at 1."""
_APART = 4
"""Distance between the numbers of a block, which leaves room to move them all."""


class Numbers:
    """An endless iterator over ascending numbers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __iter__(self) -> "Numbers":
        return self

    def __next__(self) -> int:
        return self._drawn(1)

    def block(self, count: int) -> range:
        """Return so many ascending numbers, for rows of several shards."""
        first = self._drawn(_APART * count)
        return range(first, first + _APART * count, _APART)

    def _drawn(self, count: int) -> int:
        with self._lock:
            first = max(self._last + 1, time.time_ns() // 1000)
            self._last = first + count - 1
            return first


NUMBERS = Numbers()
"""Shared by all stores of the process."""


def for_each_try(numbers: Sequence[int]) -> Callable[[], list[int]]:
    """Return a function that returns numbers of a block for the next try of a transaction.

    The try before may have failed because another process has drawn the same number, so they are moved a little.
    """
    tries = -1

    def moved() -> list[int]:
        nonlocal tries
        tries += 1
        return [number + tries % _APART for number in numbers]

    return moved
