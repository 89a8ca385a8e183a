"""`WritingThread`: the only thread on which a store writes, with a count of the waiting work."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WritingThread:
    """A queue of work for one thread. Thread-safe."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leyden-store-write")
        self._count = threading.Lock()
        self._submitted = 0

    @property
    def is_busy(self) -> bool:
        """Whether submitted work has not ended yet."""
        return self._submitted > 0

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Run `function` after all work submitted before; raises RuntimeError after `shutdown`."""
        with self._count:
            self._submitted += 1
        future = self._thread.submit(function, *arguments)
        future.add_done_callback(self._ended)
        return future

    def shutdown(self) -> None:
        """Wait until all work has ended; later calls of `submit` raise."""
        self._thread.shutdown(wait=True)

    def _ended(self, _future: object) -> None:
        with self._count:
            self._submitted -= 1
