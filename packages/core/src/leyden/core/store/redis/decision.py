"""Sources and results of a transaction's work: the state between its work and its commit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from leyden.core.store.redis.changes import is_empty
from leyden.core.store.redis.connection import RedisLink
from leyden.core.store.redis.rows import RedisRows
from leyden.core.store.redis.scripts import HOLD, READ, Command, CommitMessage, HealthCheckDue, RedisKeys

T = TypeVar("T")

_HOLD_MILLISECONDS = "1000"
"""Milliseconds for which others skip a rollout that is about to be claimed; too short a time does no harm."""


_NOTHING = CommitMessage(())


class NotCached(Exception):
    """Work on cached data alone needs data that are not in the cache."""


@dataclass
class TransactionResult(Generic[T]):
    """Result of a transaction's work, and the commit that it needs."""

    rows: RedisRows
    writes: bool
    result: T | None = None
    problem: Exception | None = None
    message: CommitMessage = _NOTHING
    """The commit, where there is one."""

    @property
    def keeps(self) -> bool:
        """Whether changes must be written."""
        return self.writes and self.problem is None and not is_empty(self.rows)

    @property
    def is_checked(self) -> bool:
        """Whether Redis must confirm that all data that were read are unchanged, at one moment."""
        return self.keeps or self.rows.uses_cache or self.rows.queries > 1


@dataclass(frozen=True, slots=True)
class PreparedCommit(Generic[T]):
    """A commit that is ready to be sent."""

    arguments: Sequence[bytes | str]
    """Arguments of the script `COMMIT`."""
    result: T
    """Result for the caller after the commit."""
    settle: Callable[[int], None]
    """Updates the cache; called with the first position that the commit assigned."""


class LinkSource:
    """Reads over one link; raises HealthCheckDue where the health check must write first."""

    def __init__(self, link: RedisLink, keys: RedisKeys, now: str, name: str | None) -> None:
        """Claims are reserved under `name`; without a name, queues are only read."""
        self._link, self._keys, self.now, self._name = link, keys, now, name

    def query(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands, all from one moment."""
        return _found(self._link.run(READ, self._keys.deadlines, self.now, msgspec.msgpack.encode(commands)))

    def hold(self, queue: str, limit: int) -> list[Any]:
        """Return the first rollouts of a queue, and reserve them."""
        keys = self._keys
        if self._name is None:
            (found,) = self.query([("EACH", "0", str(limit - 1), keys.rollout, keys.queue(queue), "", "HGETALL")])
            return found
        wanted = (keys.deadlines, keys.queue(queue), keys.held, keys.rollout, self.now, str(limit), self._name)
        return _found(self._link.run(HOLD, *wanted, _HOLD_MILLISECONDS))


def _found(answer: list[Any]) -> list[Any]:
    if answer[0]:
        raise HealthCheckDue
    return answer[1]


class EmptySource:
    """A source without data, for work on cached data alone."""

    def __init__(self, now: str) -> None:
        self.now = now

    def query(self, commands: Sequence[Command]) -> list[Any]:
        """Raise NotCached."""
        raise NotCached

    def hold(self, queue: str, limit: int) -> list[Any]:
        """Raise NotCached."""
        raise NotCached
