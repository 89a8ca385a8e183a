"""`Notifier`: notifies waiting callers on any event loop, by topic."""

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress


class Waiter:
    """One waiting caller on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the caller. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed, and has no waiting caller
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None) -> None:
        """Return after a notification since the last call, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


class Notifier:
    """Notifies the waiters of topics. A notification between `listen` and `wait` is not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, set[Waiter]] = {}

    @contextmanager
    def listen(self, topics: Iterable[str]) -> Generator[Waiter]:
        """Return a waiter that is subscribed to `topics` inside the block."""
        waiter, topics = Waiter(), set(topics)
        with self._lock:
            for topic in topics:
                self._waiters.setdefault(topic, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                for topic in topics:
                    waiters = self._waiters[topic]
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiters[topic]

    def notify(self, topics: Iterable[str]) -> None:
        """Wake every waiter of one of `topics`. Thread-safe."""
        with self._lock:
            waiters = {waiter for topic in topics for waiter in self._waiters.get(topic, ())}
        for waiter in waiters:
            waiter.notify()

    def notify_all(self) -> None:
        """Wake every waiter."""
        with self._lock:
            topics = list(self._waiters)
        self.notify(topics)
