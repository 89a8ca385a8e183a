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

    def hear(self) -> None:
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
        self._ears: dict[str, set[Waiter]] = {}

    @contextmanager
    def listen(self, topics: Iterable[str]) -> Generator[Waiter]:
        """Return a waiter that is subscribed to `topics` inside the block."""
        ear, topics = Waiter(), set(topics)
        with self._lock:
            for topic in topics:
                self._ears.setdefault(topic, set()).add(ear)
        try:
            yield ear
        finally:
            with self._lock:
                for topic in topics:
                    ears = self._ears[topic]
                    ears.discard(ear)
                    if not ears:
                        del self._ears[topic]

    def ring(self, topics: Iterable[str]) -> None:
        """Wake every waiter of one of `topics`. Thread-safe."""
        with self._lock:
            ears = {ear for topic in topics for ear in self._ears.get(topic, ())}
        for ear in ears:
            ear.hear()

    def ring_all(self) -> None:
        """Wake every waiter."""
        with self._lock:
            topics = list(self._ears)
        self.ring(topics)
