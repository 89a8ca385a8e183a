"""`RecentAttempts`: attempts that were looked at a moment ago, for whoever asks of every model call. Knows no rows.

An attempt is forgotten when this process changes anything of it but its heartbeat, and after `seconds` in any case,
because another process may have changed it.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Iterable

from leyden.core.data.rollout import Attempt, Rollout

MOST = 4096
"""Rollouts that are remembered; beyond that all are forgotten, and looked up again."""

Key = tuple[str, str]
Found = tuple[Rollout, Attempt]


class RecentAttempts:
    """Safe from any thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, tuple[float, Found]]] = {}
        self._changes = 0

    def get(self, key: Key) -> Found | None:
        """Return what was found a moment ago."""
        entry = self._found.get(key[0], {}).get(key[1])
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    async def find(self, key: Key, look: Callable[[], Awaitable[Found | None]]) -> Found | None:
        """Return what was found a moment ago, or what `look` finds, which is then remembered."""
        found = self.get(key)
        if found is None:
            changes = self.changes()
            found = await look()
            if found is not None:
                self.put(key, found, changes)
        return found

    def changes(self) -> int:
        """How often anything was forgotten; to be asked before a look at the store."""
        return self._changes

    def put(self, key: Key, found: Found, changes: int) -> None:
        """Remember what a look found, unless something may have changed since `changes`."""
        with self._lock:
            if self._changes != changes:
                return
            if len(self._found) >= MOST:
                self._found.clear()
            self._found.setdefault(key[0], {})[key[1]] = (time.monotonic() + self._seconds, found)

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Forget the attempts of rollouts that have changed."""
        with self._lock:
            for rollout_id in rollout_ids:
                self._changes += 1
                self._found.pop(rollout_id, None)
