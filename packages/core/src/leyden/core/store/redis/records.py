"""`RedisRecords`: runs, metrics and versions of policies in Redis, within one transaction. Knows no connections.

A run is one hash, a step and a version are one value each, and sorted sets give their order. Whatever is written of a
run, its hash is too: a commit that was decided on an older one is refused.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from leyden.core.store.common.record_rows import MetricsRow, RunRow, VersionKey, VersionRow
from leyden.core.store.common.rows import KEPT_SECONDS
from leyden.core.store.query import Query, evaluate
from leyden.core.store.redis.codec import ABSENT, place
from leyden.core.store.redis.scripts import chunks
from leyden.core.store.redis.transaction import Picture

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class RedisRecords(Picture):
    """The part of `RedisRows` that holds runs, and what named requests made."""

    def answered(self, request_id: str) -> bytes | None:
        """A value."""
        (found,) = self.ask(("GET", self.keys.request + request_id))
        return found

    def note_answer(self, request_id: str, answer: bytes) -> None:
        """A value that goes by itself."""
        key, seconds = self.keys.request + request_id, str(round(KEPT_SECONDS))
        self.record_changes.append(("SET", key, answer, "EX", seconds))

    def run(self, run_id: str) -> RunRow | None:
        """A hash; the commit finds out whether it is as it was."""
        ((version, packed),) = self.ask(("HMGET", self.keys.run + run_id, "v", "row"))
        self.seen_runs.setdefault(run_id, ABSENT if version is None else version.decode())
        return None if packed is None else _read(RunRow, packed)

    def insert_run(self, row: RunRow) -> None:
        """A hash, and its place."""
        self.replace_run(row)
        self.record_changes.append(("ZADD", self.keys.runs, place(self.new_place()), row.run_id))

    def replace_run(self, row: RunRow) -> None:
        """The hash."""
        change = ("HSET", self.keys.run + row.run_id, "v", self.version, "row", _pack(astuple(row)))
        self.record_changes.append(change)

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Evaluate over all."""
        (found,) = self.ask(("EACH", "0", "-1", self.keys.run, self.keys.runs, "HGET", "row"))
        return evaluate([_read(RunRow, packed) for _, packed in found], query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """A value each."""
        found = self.ask(*(("GET", self._step(run_id, step)) for step in steps))
        rows = [_read(MetricsRow, packed) for packed in found if packed is not None]
        return {row.step: row for row in rows}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """A value each, and its place, which is the step."""
        self.replace_metrics(rows)
        for row in rows:
            self.record_changes.append(("ZADD", self.keys.steps + row.run_id, str(row.step), str(row.step)))

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """A value each."""
        for row in rows:
            self.record_changes.append(("SET", self._step(row.run_id, row.step), _pack(astuple(row))))

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """The page alone; they are always wanted by step."""
        run_id = query.within["run_id"]
        steps = self.keys.steps + run_id
        if not _is_one_word(run_id):
            return [], 0
        if query.limit == 0:
            return [], self.ask(("ZCARD", steps))[0]
        first, last = _part(query)
        each = ("EACH", str(first), str(last), self._step(run_id, ""), steps, "GET")
        found, total = self.ask(each, ("ZCARD", steps))
        rows = [_read(MetricsRow, packed) for _, packed in found]
        return rows[:: 1 if query.order == "asc" else -1], total

    def _step(self, run_id: str, step: int | str) -> str:
        return f"{self.keys.metrics}{run_id}:{step}"

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """A value."""
        (packed,) = self.ask(("GET", self.keys.policy_version + _member(*key)))
        return None if packed is None else _read(VersionRow, packed)

    def insert_policy_version(self, row: VersionRow) -> None:
        """A value, and its place among all and among those of its run."""
        self.replace_policy_version(row)
        number, member = place(self.new_place()), _member(row.run_id, row.policy, row.version)
        for name in (self.keys.policy_versions, self._versions_of(row.run_id)):
            self.record_changes.append(("ZADD", name, number, member))

    def replace_policy_version(self, row: VersionRow) -> None:
        """The value."""
        key = self.keys.policy_version + _member(row.run_id, row.policy, row.version)
        self.record_changes.append(("SET", key, _pack(astuple(row))))

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Evaluate over one run's, or over all."""
        run_id = query.within.get("run_id")
        if run_id is not None and not _is_one_word(run_id):
            return [], 0
        names = self.keys.policy_versions if run_id is None else self._versions_of(run_id)
        (found,) = self.ask(("EACH", "0", "-1", self.keys.policy_version, names, "GET"))
        return evaluate([_read(VersionRow, packed) for _, packed in found], query)

    def _versions_of(self, run_id: str) -> str:
        return f"{self.keys.policy_versions}:{run_id}"

    def forget_after(self, run_id: str, step: int) -> None:
        """With their places."""
        steps, versions = self.keys.steps + run_id, self._versions_of(run_id)
        later, members = self.ask(("ZRANGEBYSCORE", steps, f"({step}", "+inf"), ("ZRANGE", versions, "0", "-1"))
        gone = [name.decode() for name in later]
        for chunk in chunks(gone):
            self.record_changes += [("ZREM", steps, *chunk), ("DEL", *(self._step(run_id, name) for name in chunk))]
        after = [name for name in (member.decode() for member in members) if int(name.rpartition(":")[2]) > step]
        for chunk in chunks(after):
            self.record_changes += [("ZREM", name, *chunk) for name in (self.keys.policy_versions, versions)]
            self.record_changes.append(("DEL", *(self.keys.policy_version + name for name in chunk)))


def _read(kind: type[Any], packed: bytes) -> Any:
    return kind(**dict(zip(kind.__struct_fields__, _unpack(packed), strict=True)))


def _member(run_id: str, policy: str, version: int) -> str:
    """What stands for a version; the ids and names of what is stored have no colon."""
    return f"{run_id}:{policy}:{version}"


def _is_one_word(run_id: str) -> bool:
    """Whether there may be such a run; the names of sorted sets travel with spaces between them."""
    return run_id.split() == [run_id]


def _part(query: Query) -> tuple[int, int]:
    """First and last place, in ascending order, of the steps that are wanted."""
    first, last = query.offset, -1 if query.limit < 0 else query.offset + query.limit - 1
    return (first, last) if query.order == "asc" else (0 if last < 0 else -1 - last, -1 - first)
