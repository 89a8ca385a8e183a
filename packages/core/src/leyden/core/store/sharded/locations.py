"""`Locations`: on which shard a rollout or a run is.

A new one is placed by the hash of its id. An old one may be elsewhere, because the list has changed or the first shard
could not be reached when it was made, so the other shards are searched too. Ids that this store makes are on one shard
only. A caller's own id may be on two, where a rollout was queued again while its shard could not be reached: then the
copy that was begun first counts, and the other one is cancelled when it is claimed (`claims`).
"""

import re
import threading
from collections.abc import Iterable, Sequence
from uuid import uuid4

import msgspec

from leyden.core.data.rollout import QUEUED
from leyden.core.errors import StoreError
from leyden.core.store.common.rows import RolloutRow, Rows
from leyden.core.store.common.run_record_rows import RunRow
from leyden.core.store.sharded.placement import ranked, weight
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shards import Shards

_MOST = 200_000
"""Largest number of places that are remembered."""
_OWN = re.compile(r"ro-s[0-9a-f]{15}")
DUPLICATE = "leyden.duplicate"
"""Note in the metadata of a rollout that was cancelled because another shard has it too."""
_NOTES = msgspec.msgpack.Decoder()


def new_rollout_id() -> str:
    """Return a new unique id, which shows that no caller has chosen it."""
    return f"ro-s{uuid4().hex[:15]}"


def is_own_id(rollout_id: str) -> bool:
    """Whether `new_rollout_id` has made the id."""
    return _OWN.fullmatch(rollout_id) is not None


class Copy(msgspec.Struct, frozen=True):
    """A rollout on one shard, and when its first attempt began."""

    row: RolloutRow
    begun: float | None

    def precedes(self, other: "Copy", *, by_rank: bool) -> bool:
        """Whether this copy counts and not the other; `by_rank` is the answer for two copies that wait alike."""
        if self.is_void != other.is_void:
            return other.is_void
        if (self.begun is None) != (other.begun is None):
            return other.begun is None
        if self.begun is not None and other.begun is not None and self.begun != other.begun:
            return self.begun < other.begun
        if (self.row.status in QUEUED) != (other.row.status in QUEUED):
            return other.row.status in QUEUED
        return by_rank

    @property
    def is_void(self) -> bool:
        """Whether it was cancelled as a duplicate."""
        return self.row.status == "cancelled" and DUPLICATE in _NOTES.decode(self.row.metadata)


def copies_of(rows: Rows, rollout_ids: Sequence[str]) -> dict[str, Copy]:
    """Return the rollouts among these ids that a shard has."""
    found = rows.rollouts(rollout_ids)
    return {
        name: Copy(
            row, next((attempt.start_time for attempt in rows.attempts_of(name)), None) if row.attempts else None
        )
        for name, row in found.items()
    }


class Locations:
    """Finds shards, and remembers them."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._known: dict[str, Shard] = {}
        self._runs: dict[str, Shard] = {}

    def note(self, rollout_ids: Iterable[str], shard: Shard) -> None:
        """Remember where these rollouts are."""
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known.update(dict.fromkeys(rollout_ids, shard))

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Search for these rollouts again at the next call."""
        with self._lock:
            for rollout_id in rollout_ids:
                self._known.pop(rollout_id, None)

    async def rollout(self, rollout_id: str) -> Shard:
        """Return the shard that has a rollout; where none has it, one that can report that.

        Raises StoreError where it may be on a shard that cannot be reached.
        """
        known = self._known.get(rollout_id)
        if known is not None and known in await self._shards.all():
            return known
        found, missing = await self.rollouts([rollout_id])
        if rollout_id in found:
            return found[rollout_id]
        self.require(missing, f"rollout {rollout_id}")
        return await self._shards.first_reachable(rollout_id)

    async def rollouts(self, rollout_ids: Sequence[str]) -> tuple[dict[str, Shard], list[Shard]]:
        """Return the shards of those rollouts that were found, and the shards that could not be searched."""
        shards = await self._shards.all()
        found = {name: self._known[name] for name in rollout_ids if self._known.get(name) in shards}
        own = [name for name in dict.fromkeys(rollout_ids) if name not in found and is_own_id(name)]
        if own:
            found |= await self._at_first_choice(shards, own)
        left = [name for name in dict.fromkeys(rollout_ids) if name not in found]
        if not left:
            return found, []
        answers = await self._shards.ask(lambda rows: copies_of(rows, left))
        for name in left:
            shard = best(name, {shard: copies[name] for shard, copies in answers.by_shard.items() if name in copies})
            if shard is not None:
                found[name] = shard
                self.note([name], shard)
        return found, answers.missing if any(name not in found for name in left) else []

    async def _at_first_choice(self, shards: Sequence[Shard], own: Sequence[str]) -> dict[str, Shard]:
        choices: dict[Shard, list[str]] = {}
        for name in own:
            choices.setdefault(max(shards, key=lambda shard: weight(shard.name, name)), []).append(name)
        found: dict[str, Shard] = {}
        for shard, names in choices.items():
            answers = await self._shards.ask(lambda rows, names=names: list(rows.rollouts(names)), among=[shard])
            for there in answers.by_shard.values():
                found |= dict.fromkeys(there, shard)
                self.note(there, shard)
        return found

    async def run(self, run_id: str, *, is_new: bool = False) -> Shard | None:
        """Return the shard that has the records of a run, or None.

        Raises StoreError where they may be on a shard that cannot be reached. A run that `is_new` for its caller is not
        on such a shard while the first shard by rank, on which it would be, can be reached.
        """
        shards = await self._shards.all()
        known = self._runs.get(run_id)
        if known is not None and known in shards:
            return known
        answers = await self._shards.ask(lambda rows: bool(rows.records(RunRow, [(run_id,)])))
        found = ranked((shard for shard, has in answers.by_shard.items() if has), run_id)
        if not found:
            if not is_new or ranked(shards, run_id)[0] in answers.missing:
                self.require(answers.missing, f"run {run_id}")
            return None
        self._runs[run_id] = found[0]
        return found[0]

    def require(self, missing: Sequence[Shard], what: str) -> None:
        """Raise StoreError where shards that could have something were not searched."""
        if missing:
            lines = "; ".join(shard.problem for shard in missing)
            raise StoreError(f"{what} is on no shard that can be reached; {lines}")


def best(rollout_id: str, copies: dict[Shard, Copy]) -> Shard | None:
    """Return the shard whose copy of a rollout counts, or None without a copy."""
    found: Shard | None = None
    for shard in ranked(copies, rollout_id):  # in this order, `found` is always of a higher rank
        if found is None or copies[shard].precedes(copies[found], by_rank=False):
            found = shard
    return found
