"""`WritingThread`: the one thread on which a store writes, and whether anything waits for it. Knows nothing of rows."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WritingThread:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leyden-store-write")
        self._count = threading.Lock()
        self._submitted = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything that was submitted has yet to end."""
        return self._submitted > 0

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Run `function` after all that was submitted before; raises RuntimeError after `shutdown`."""
        with self._count:
            self._submitted += 1
        future = self._thread.submit(function, *arguments)
        future.add_done_callback(self._ended)
        return future

    def shutdown(self) -> None:
        """Return when everything has ended; nothing more is taken."""
        self._thread.shutdown(wait=True)

    def _ended(self, _future: object) -> None:
        with self._count:
            self._submitted -= 1
