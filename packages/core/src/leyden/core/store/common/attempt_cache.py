"""`RecentAttempts`: a cache of attempts that were looked up recently, for callers that need one at every model call.

An entry is removed when this process changes the attempt, other than by a heartbeat. It expires after `seconds` in any
case, because another process may have changed the attempt.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Iterable

from leyden.core.data.rollout import Attempt, Rollout

MOST = 4096
"""Largest number of cached rollouts; above it, the cache is cleared."""

Key = tuple[str, str]
Found = tuple[Rollout, Attempt]


class RecentAttempts:
    """Cache of attempts by rollout id and attempt id. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, tuple[float, Found]]] = {}
        self._changes = 0

    def get(self, key: Key) -> Found | None:
        """Return the cached attempt with its rollout, or None."""
        entry = self._found.get(key[0], {}).get(key[1])
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    async def find(self, key: Key, look: Callable[[], Awaitable[Found | None]]) -> Found | None:
        """Return the cached attempt, or the result of `look`, which is then cached."""
        found = self.get(key)
        if found is None:
            changes = self.changes()
            found = await look()
            if found is not None:
                self.put(key, found, changes)
        return found

    def changes(self) -> int:
        """Return the number of removals so far; to be called before a look-up in the store."""
        return self._changes

    def put(self, key: Key, found: Found, changes: int) -> None:
        """Cache the result of a look-up, unless an entry was removed since `changes` was read."""
        with self._lock:
            if self._changes != changes:
                return
            if len(self._found) >= MOST:
                self._found.clear()
            self._found.setdefault(key[0], {})[key[1]] = (time.monotonic() + self._seconds, found)

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Remove the attempts of rollouts that have changed."""
        with self._lock:
            for rollout_id in rollout_ids:
                self._changes += 1
                self._found.pop(rollout_id, None)
