"""What a transaction decides on and what it decided, between its work and its commit. Knows no threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from leyden.core.store.redis.changes import is_empty
from leyden.core.store.redis.connection import Link
from leyden.core.store.redis.rows import RedisRows
from leyden.core.store.redis.scripts import HOLD, READ, Command, Due, Keys, Message

T = TypeVar("T")

_HOLD_MILLISECONDS = "1000"
"""How long others leave a rollout to the one who is about to claim it; it does not matter if that is too short."""


_NOTHING = Message(())


class MustAsk(Exception):
    """What was to be decided on memory alone cannot be."""


@dataclass
class Decided(Generic[T]):
    """What became of a transaction's work, and what is left to do."""

    rows: RedisRows
    writes: bool
    result: T | None = None
    problem: Exception | None = None
    message: Message = _NOTHING
    """The commit, where there is one."""

    @property
    def keeps(self) -> bool:
        """Whether something is to be written."""
        return self.writes and self.problem is None and not is_empty(self.rows)

    @property
    def is_checked(self) -> bool:
        """Whether Redis must say that what was read is as it was, all at one moment."""
        return self.keeps or self.rows.believes or self.rows.asked > 1


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A commit that may be sent."""

    script: str
    arguments: Sequence[bytes | str]
    """Of the script."""
    result: T
    """What its caller is answered once it is made."""
    settle: Callable[[int], None]
    """Remembers what was written; it is told the first place that was given out."""


class LinkSource:
    """Asks over one link; raises Due where the health check must write first."""

    def __init__(self, link: Link, keys: Keys, now: str, name: str | None) -> None:
        """Holds in the name of `name`; without one it only looks."""
        self._link, self._keys, self.now, self._name = link, keys, now, name

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Answer commands of one moment."""
        return _found(self._link.run(READ, self._keys.deadlines, self.now, msgspec.msgpack.encode(commands)))

    def hold(self, limit: int) -> list[Any]:
        """Answer the first in the queue, and hold them."""
        keys = self._keys
        if self._name is None:
            (found,) = self.ask([("EACH", "0", str(limit - 1), keys.rollout, keys.queue, "HGETALL")])
            return found
        wanted = (keys.deadlines, keys.queue, keys.held, keys.rollout, self.now, str(limit), self._name)
        return _found(self._link.run(HOLD, *wanted, _HOLD_MILLISECONDS))


def _found(answer: list[Any]) -> list[Any]:
    if answer[0]:
        raise Due
    return answer[1]


class NoSource:
    """Answers nothing; for what is decided on memory alone."""

    def __init__(self, now: str) -> None:
        self.now = now

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Refuse."""
        raise MustAsk

    def hold(self, limit: int) -> list[Any]:
        """Refuse."""
        raise MustAsk
