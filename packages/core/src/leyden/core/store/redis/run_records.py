"""`RedisRunRecords`: rows of the records of runs in Redis, within one transaction.

A run is one hash, a step and a version are one value each, and sorted sets give their order. Every write to a record of
a run also writes the run's hash, so a commit based on an older hash is refused.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from leyden.core.store.common.run_record_rows import BY_STEP, R, RecordKey, RecordRow, RunRow, StepRow
from leyden.core.store.query import Query, evaluate
from leyden.core.store.redis.codec import ABSENT, position_argument
from leyden.core.store.redis.scripts import chunks
from leyden.core.store.redis.transaction import TransactionSnapshot

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class RedisRunRecords(TransactionSnapshot):
    """The part of `RedisRows` that holds records of runs."""

    def records(self, kind: type[R], keys: Sequence[RecordKey]) -> dict[RecordKey, R]:
        """Read each row's key, and record the versions of runs for the commit's check."""
        names = [self._name(kind, key) for key in keys]
        if kind is RunRow:
            found = self.query(*(("HMGET", name, "v", "row") for name in names))
            for (run_id,), (version, _) in zip(keys, found, strict=True):
                self.seen_runs.setdefault(run_id, ABSENT if version is None else version.decode())
            stored = [packed for _, packed in found]
        else:
            stored = self.query(*(("GET", name) for name in names))
        rows = [_read(kind, packed) for packed in stored if packed is not None]
        return {row.key: row for row in rows}

    def insert_records(self, rows: Sequence[RecordRow]) -> None:
        """Set each row's key, and its place in sorted sets: the step's number, or the position by creation."""
        self.replace_records(rows)
        for row in rows:
            place = str(row.step) if isinstance(row, StepRow) else position_argument(self.new_position())
            _, sets = self._places(type(row), row.run_id)
            self.record_changes += [("ZADD", name, place, _member(type(row), row.key)) for name in sets]

    def replace_records(self, rows: Sequence[RecordRow]) -> None:
        """Set each row's key."""
        for row in rows:
            name, packed = self._name(type(row), row.key), _pack(astuple(row))
            hashed = ("HSET", name, "v", self.version, "row", packed)
            self.record_changes.append(hashed if isinstance(row, RunRow) else ("SET", name, packed))

    def select_records(self, kind: type[R], query: Query) -> tuple[list[R], int]:
        """Read only the page of steps, which are always sorted by number; else read all, and evaluate."""
        run_id = query.within.get("run_id")
        if run_id is not None and run_id.split() != [run_id]:  # no run's id; `EACH` separates names by spaces
            return [], 0
        prefix, (ordered, *_) = self._places(kind, run_id)
        if kind is not StepRow:
            command = ("HGET", "row") if kind is RunRow else ("GET",)
            (found,) = self.query(("EACH", "0", "-1", prefix, ordered, "", *command))
            rows = [_read(kind, packed) for _, packed in found]
            if query.after is None or not rows:
                return evaluate(rows, query)
            positions = dict(zip((row.key for row in rows), self.positions_of(rows), strict=True))
            return evaluate(rows, query, lambda row: positions[row.key])
        if query.limit == 0:
            return [], self.query(("ZCARD", ordered))[0]
        first, last = _part(query)
        found, total = self.query(("EACH", str(first), str(last), prefix, ordered, "", "GET"), ("ZCARD", ordered))
        rows = [_read(kind, packed) for _, packed in found]
        return rows[:: 1 if query.order == "asc" else -1], total

    def forget_after(self, run_id: str, step: int) -> None:
        """Delete the keys of later steps and versions, with their places."""
        places = [self._places(kind, run_id) for kind in BY_STEP]
        found = self.query(*(("ZRANGE", ordered, "0", "-1") for _, (ordered, *_) in places))
        for (prefix, sets), members in zip(places, found, strict=True):
            names = [member.decode() for member in members]
            for chunk in chunks([name for name in names if int(name.rpartition(":")[2]) > step]):
                self.record_changes += [("ZREM", name, *chunk) for name in sets]
                self.record_changes.append(("DEL", *(prefix + name for name in chunk)))

    def positions_of(self, rows: Sequence[RecordRow]) -> list[int]:
        """Return the positions of runs or policy versions in the order of creation."""
        kind = type(rows[0])
        return self.scores(self._places(kind, None)[1][-1], [_member(kind, row.key) for row in rows])

    def scores(self, key: str, members: Sequence[str]) -> list[int]:
        """Return the scores of members of a sorted set; 0 for one that is not in it."""
        found = self.query(*(("ZMSCORE", key, *part) for part in chunks(members)))
        return [int(float(score or 0)) for scores in found for score in scores]

    def _places(self, kind: type[RecordRow], run_id: str | None) -> tuple[str, list[str]]:
        """Return where rows are: the prefix of their keys, and the sorted sets of what follows it, the shortest first.

        Without a run's id, those of all runs; steps have none.
        """
        keys = self.keys
        if kind is RunRow:
            return keys.run, [keys.runs]
        if kind is StepRow:
            return f"{keys.metrics}{run_id}:", [f"{keys.steps}{run_id}"]
        of_run = [] if run_id is None else [f"{keys.policy_versions}:{run_id}"]
        return keys.policy_version, [*of_run, keys.policy_versions]

    def _name(self, kind: type[RecordRow], key: RecordKey) -> str:
        return self._places(kind, key[0])[0] + _member(kind, key)


def _member(kind: type[RecordRow], key: RecordKey) -> str:
    """Return what follows the prefix in the name of a row's key; ids and names contain no colon."""
    return ":".join(str(part) for part in (key[1:] if kind is StepRow else key))


def _read(kind: type[R], packed: bytes) -> R:
    return kind(**dict(zip(kind.__struct_fields__, _unpack(packed), strict=True)))


def _part(query: Query) -> tuple[int, int]:
    """Return the first and last position, in ascending order, of the steps in the page."""
    first, last = query.offset, -1 if query.limit < 0 else query.offset + query.limit - 1
    return (first, last) if query.order == "asc" else (0 if last < 0 else -1 - last, -1 - first)
