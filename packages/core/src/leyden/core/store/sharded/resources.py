"""`SharedResources`: resources, of which every shard has a copy, so that rollouts begin while a shard is away.

One shard, the first by rank that can be reached, decides the version of new resources. They are then copied to all
others before the call returns. A shard that has missed some gets them before the next call that needs the latest ones:
every such call first compares the latest of all shards.
"""

from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import TypeAlias

import msgspec

from leyden.core.data.resources import ResourcesUpdate
from leyden.core.store.common.local import LocalStore, new_version
from leyden.core.store.common.named_requests import idempotent_resources, recorded_version
from leyden.core.store.common.rows import ResourcesRow, Rows, to_resources
from leyden.core.store.query import Query
from leyden.core.store.sharded.numbers import NUMBERS
from leyden.core.store.sharded.placement import ranked
from leyden.core.store.sharded.shard import Shard, ShardUnreachable
from leyden.core.store.sharded.shards import SOON, Shards

Version: TypeAlias = "tuple[str, int] | None"
"""Resources id and version; None for no resources."""


class _Copy(msgspec.Struct, frozen=True):
    """A version of resources with its position."""

    row: ResourcesRow
    position: int


class _Known(msgspec.Struct, frozen=True):
    """What a shard knows before a write: its latest resources, and whether it has made this request."""

    latest: Version
    is_made: bool


def latest_version(rows: Rows) -> Version:
    """Return the version of the resources that a shard stored last."""
    row = rows.resources(None)
    return None if row is None else (row.resources_id, row.version)


class SharedResources:
    """Resources of all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def agreed(self) -> list[Shard]:
        """Return the shards that have all resources, after copying what they lacked.

        Raises StoreError where no shard can be reached.
        """
        answers = (await self._shards.ask(latest_version, seconds=SOON)).require()
        behind = await self.agree(answers.by_shard)
        return [shard for shard in answers.by_shard if shard not in behind]

    async def agree(self, latest: dict[Shard, Version]) -> set[Shard]:
        """Copy resources to shards that lack them, where the latest of the shards differ.

        Return the shards to which they could not be copied.
        """
        if len(set(latest.values())) < 2:
            return set()
        return await self._copy_missing(latest)

    async def latest(self) -> ResourcesUpdate | None:
        """Return the resources stored last, or None."""

        def read(rows: Rows) -> _Copy | None:
            row = rows.resources(None)
            return None if row is None else _Copy(row, rows.positions([row])[0])

        answers = (await self._shards.ask(read, seconds=SOON)).require()
        found = max(filter(None, answers.by_shard.values()), key=lambda copy: copy.position, default=None)
        return None if found is None else to_resources(found.row)

    async def by_id(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        """Return a version, or the current one, or None."""
        answers = (await self._shards.ask(lambda rows: rows.resources(resources_id, version))).require()
        found = max(filter(None, answers.by_shard.values()), key=lambda row: row.version, default=None)
        return None if found is None else to_resources(found)

    async def update(self, resources_id: str, payload: bytes, request_id: str | None) -> ResourcesUpdate:
        """Store a new version on all shards; with a request id, only once."""

        def look(rows: Rows) -> _Known:
            return _Known(latest_version(rows), request_id is not None and rows.recorded_answer(request_id) is not None)

        known = (await self._shards.ask(look, seconds=SOON)).require().by_shard
        behind = await self.agree({shard: each.latest for shard, each in known.items()})
        first = ranked([shard for shard in known if shard not in behind] or known, resources_id)
        deciding = next((shard for shard in first if known[shard].is_made), first[0])
        made: list[_Copy] = []

        def decide(rows: Rows) -> ResourcesUpdate:
            made.clear()  # the work may be repeated

            def store(rows: Rows) -> ResourcesUpdate:
                copy = _Copy(new_version(rows, resources_id, payload), next(NUMBERS))
                _insert(rows, copy)
                made.append(copy)
                return to_resources(copy.row)

            return idempotent_resources(rows, request_id, store)

        update = await deciding.call(lambda store: store.transact(decide, write=True))
        for copy in made:
            put = _putting(copy, request_id)
            others = [shard for shard in known if shard is not deciding]
            answers = await self._shards.call_each({shard: _writing(put) for shard in others})
            if not all(answers.by_shard.values()):
                await self._copy_missing(known)
        return update

    async def _copy_missing(self, shards: Iterable[Shard]) -> set[Shard]:
        """Copy every version that some of these shards lack; return the shards to which that was not possible."""
        known = (await self._shards.ask(_current_versions, among=shards)).by_shard
        holders: dict[str, Shard] = {}
        for shard, versions in known.items():
            for name, (version, _) in versions.items():
                if name not in holders or version > known[holders[name]][name][0]:
                    holders[name] = shard
        behind = set(shards) - known.keys()
        for target, versions in known.items():
            lacking = [
                (known[holder][name][1], name, holder)
                for name, holder in holders.items()
                if versions.get(name, (0, 0))[0] < known[holder][name][0]
            ]
            try:
                for _, name, holder in sorted(lacking, key=lambda each: each[:2]):
                    await _copy_versions(name, versions.get(name, (0, 0))[0], holder, target)
            except ShardUnreachable:
                behind.add(target)
        return behind


def _current_versions(rows: Rows) -> dict[str, tuple[int, int]]:
    """Return the current version under each id, and its position."""
    found, _ = rows.select_resources(Query())
    return {
        row.resources_id: (row.version, position) for row, position in zip(found, rows.positions(found), strict=True)
    }


async def _copy_versions(resources_id: str, after: int, holder: Shard, target: Shard) -> None:
    def read(rows: Rows) -> list[_Copy]:
        current = rows.resources(resources_id)
        if current is None:
            return []
        position = rows.positions([current])[0]
        versions = [rows.resources(resources_id, number) for number in range(after + 1, current.version + 1)]
        # earlier versions only need positions in the same order
        return [_Copy(row, position - (current.version - row.version)) for row in versions if row is not None]

    for copy in await holder.ask(read, None):
        await target.call(_writing(_putting(copy, None)))


def _putting(copy: _Copy, request_id: str | None) -> Callable[[Rows], bool]:
    def put(rows: Rows) -> bool:
        """Store the copy, and the answer to its request; return False where an earlier version is missing."""
        row = copy.row
        current = rows.resources(row.resources_id)
        before = 0 if current is None else current.version
        if before < row.version - 1:
            return False
        if before == row.version - 1:
            _insert(rows, copy)
        if request_id is not None and rows.recorded_answer(request_id) is None:
            rows.record_answer(request_id, recorded_version(row.resources_id, row.version))
        return True

    return put


def _writing(work: Callable[[Rows], bool]) -> Callable[[LocalStore], Awaitable[bool]]:
    return lambda store: store.transact(work, write=True)


def _insert(rows: Rows, copy: _Copy) -> None:
    rows.given_positions = chain([copy.position], NUMBERS)
    rows.insert_resources(copy.row)
