"""`Shards`: all shards of a store, as its list says at the moment, and calls to several of them at once."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leyden.core.data.rollout import FINISHED_ROLLOUT, ROLLOUT_MOVES
from leyden.core.errors import StoreClosed, StoreError, UsageError
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.notifier import Notifier
from leyden.core.store.common.rows import Rows
from leyden.core.store.common.run_record_rows import RunRow
from leyden.core.store.query import Query, conditions
from leyden.core.store.sharded.numbers import FIRST
from leyden.core.store.sharded.placement import ranked
from leyden.core.store.sharded.shard import OpenShard, Shard, ShardUnreachable
from leyden.core.store.sharded.shard_list import ShardList, ShardSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")

SOON = 2.0
"""Seconds within which a shard must answer before a write or a claim; otherwise it is left out."""
_OPENED_SECONDS = 30.0
"""Longest wait for the shards when the store is opened."""
RETURNED = "shards"
"""Topic that is notified when a shard can be reached again, or the list has changed."""
UNFINISHED = Query(
    conditions=conditions(one_of={"status": [name for name in ROLLOUT_MOVES if name not in FINISHED_ROLLOUT]}), limit=0
)


@dataclass(frozen=True)
class Answers(Generic[T]):
    """Answers of those shards that could be reached."""

    by_shard: dict[Shard, T]
    missing: list[Shard]

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each shard that could not be reached."""
        return tuple(shard.problem for shard in self.missing)

    def require(self) -> "Answers[T]":
        """Return this; raises StoreError where no shard could be reached."""
        if not self.by_shard:
            raise StoreError(f"no shard can be reached: {'; '.join(self.problems)}")
        return self


class Shards:
    """The shards that `listed` names. Thread-safe, for any number of event loops."""

    def __init__(self, listed: ShardList, opening: OpenShard) -> None:
        self.listed = listed
        self._opening = opening
        self.notifier = Notifier()
        self._reading = threading.Lock()
        self._shards: Sequence[Shard] = [self._shard(spec) for spec in listed.read()]
        self._removed: list[Shard] = []
        """Shards that were removed from the list; calls may still use them, so they are closed with the store."""
        self._closed = False

    def _shard(self, spec: ShardSpec) -> Shard:
        return Shard(spec, self.listed.uri_of(spec), self._opening, lambda: self.notifier.notify({RETURNED}))

    async def open(self) -> None:
        """Wait until every shard was tried. Raises UsageError where none can be opened, or where they do not match."""
        problems = await asyncio.gather(*(shard.opened(_OPENED_SECONDS) for shard in self._shards))
        if any(not shard.is_down for shard in self._shards):
            if (objection := await self._objection(self._shards)) is not None:
                await self.close()
                raise UsageError(objection)
            return
        await self.close()
        reasons = "; ".join(
            f"{shard.name}: {shard.problem if problem is None else problem}"
            for shard, problem in zip(self._shards, problems, strict=True)
        )
        raise UsageError(f"no shard in {self.listed.path} can be opened: {reasons}")

    async def close(self) -> None:
        """Close all shards."""
        self._closed = True
        self.notifier.notify_all()
        await asyncio.gather(*(shard.close() for shard in [*self._shards, *self._removed]))

    @property
    def now(self) -> Sequence[Shard]:
        """The shards as they were listed when the list was last read."""
        return self._shards

    async def all(self) -> Sequence[Shard]:
        """Return the shards of the list as it is now."""
        if self._closed:
            raise StoreClosed()
        if self._reading.acquire(blocking=False):
            try:
                specs = self.listed.read_if_changed()
                if specs is not None:
                    await self._change(specs)
            finally:
                self._reading.release()
        return self._shards

    async def _change(self, specs: Sequence[ShardSpec]) -> None:
        before = {(shard.name, shard.uri): shard for shard in self._shards}
        shards: list[Shard] = []
        for spec in specs:
            shards.append(before.pop((spec.name, self.listed.uri_of(spec)), None) or self._shard(spec))
        await asyncio.gather(*(shard.opened(SOON) for shard in shards))
        if (objection := await self._objection(shards)) is not None:
            logger.error("%s; the shards that were listed before stay in use", objection)
            await asyncio.gather(*(shard.close() for shard in shards if shard not in self._shards))
            return
        for shard, spec in zip(shards, specs, strict=True):
            shard.state = spec.state
        self._shards = shards
        logger.info("%s now lists the shards %s", self.listed.path, ", ".join(map(repr, shards)))
        for shard in before.values():
            self._removed.append(shard)
            await self._report_removed(shard)
        self.notifier.notify({RETURNED})

    async def _objection(self, shards: Sequence[Shard]) -> str | None:
        """Return why these cannot be shards of one list; None if they can. Shards that cannot be reached are left out.

        Rows that a store numbered before it was a shard have no order with those of another such store.
        """
        answers = await self.ask(_has_rows_from_before, seconds=_OPENED_SECONDS, among=shards)
        names = [shard.name for shard, has_rows in answers.by_shard.items() if has_rows]
        if len(names) < 2:
            return None
        return (
            f"the shards {', '.join(names)} in {self.listed.path} all have rollouts or runs from before they were "
            "shards: only one such store can be in a list; leave the others out, or give empty stores in their place"
        )

    async def _report_removed(self, shard: Shard) -> None:
        try:
            left = str(await shard.ask(lambda rows: rows.select_rollouts(UNFINISHED)[1], SOON))
        except StoreError:
            left = "an unknown number"
        if left != "0":
            where = self.listed.path
            logger.warning(
                "shard %s is no longer listed in %s, with %s of unfinished rollouts", shard.name, where, left
            )

    async def reachable(self) -> list[Shard]:
        """Return the shards that are not known to be down."""
        return [shard for shard in await self.all() if not shard.is_down]

    async def place(self, key: str) -> Shard:
        """Return the shard for a new rollout or run: the first by rank that takes new ones and can be reached."""
        shards = await self.all()
        found = next((shard for shard in ranked(shards, key) if shard.state == "active" and not shard.is_down), None)
        if found is None:
            down = [shard.problem for shard in shards if shard.is_down]
            raise StoreError(f"no shard takes new rollouts: {'; '.join(down)}")
        return found

    async def first_reachable(self, key: str) -> Shard:
        """Return the first shard by rank that can be reached, whether it takes new rollouts or not."""
        shards = await self.all()
        found = next((shard for shard in ranked(shards, key) if not shard.is_down), None)
        if found is None:
            raise StoreError(f"no shard can be reached: {'; '.join(shard.problem for shard in shards)}")
        return found

    async def ask(
        self, work: Callable[[Rows], T], *, seconds: float | None = None, among: Iterable[Shard] | None = None
    ) -> Answers[T]:
        """Read from all shards, or some, at once. `seconds` limits the wait for each."""
        shards = list(await self.all() if among is None else among)
        found = await asyncio.gather(*(shard.ask(work, seconds) for shard in shards), return_exceptions=True)
        return _answers(shards, found)

    async def call_each(self, calls: dict[Shard, Callable[[LocalStore], Awaitable[T]]]) -> Answers[T]:
        """Make one call to each of these shards, all at once, and wait for all; those that failed are missing."""
        found = await asyncio.gather(*(shard.call(call) for shard, call in calls.items()), return_exceptions=True)
        return _answers(list(calls), found)

    async def call_all(self, calls: dict[Shard, Callable[[LocalStore], Awaitable[T]]]) -> dict[Shard, T]:
        """Make one call to each of these shards, all at once, and wait for all. Raises the first error."""
        if len(calls) == 1:
            ((shard, call),) = calls.items()
            return {shard: await shard.call(call)}
        found = await asyncio.gather(*(shard.call(call) for shard, call in calls.items()), return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(calls, found, strict=True))  # pyright: ignore[reportReturnType] no answer is an error


def _has_rows_from_before(rows: Rows) -> bool:
    """Whether the oldest rollout or run of a store was stored before the store was a shard."""
    oldest = (rows.select_rollouts(Query(limit=1))[0], rows.select_records(RunRow, Query(limit=1))[0])
    return any(rows.positions(found)[0] < FIRST for found in oldest if found)


def _answers(shards: Sequence[Shard], found: Sequence[Any]) -> Answers[Any]:
    by_shard: dict[Shard, Any] = {}
    missing: list[Shard] = []
    for shard, answer in zip(shards, found, strict=True):
        if isinstance(answer, ShardUnreachable):
            missing.append(shard)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            by_shard[shard] = answer
    return Answers(by_shard, missing)
