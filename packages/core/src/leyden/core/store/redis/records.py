"""`RedisRecords`: rows of runs, metrics and policy versions in Redis, within one transaction.

A run is one hash, a step and a version are one value each, and sorted sets give their order. Every write to a run's
data also writes its hash, so a commit based on an older hash is refused.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from leyden.core.store.common.record_rows import MetricsRow, RunRow, VersionKey, VersionRow
from leyden.core.store.common.rows import KEPT_SECONDS
from leyden.core.store.query import Query, evaluate
from leyden.core.store.redis.codec import ABSENT, position_argument
from leyden.core.store.redis.scripts import chunks
from leyden.core.store.redis.transaction import TransactionSnapshot

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class RedisRecords(TransactionSnapshot):
    """The part of `RedisRows` that holds runs, and the results of requests with an id."""

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Read the result's key."""
        (found,) = self.query(("GET", self.keys.request + request_id))
        return found

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Set the result's key, with an expiry time."""
        key, seconds = self.keys.request + request_id, str(round(KEPT_SECONDS))
        self.record_changes.append(("SET", key, answer, "EX", seconds))

    def run(self, run_id: str) -> RunRow | None:
        """Read the run's hash, and record its version for the commit's check."""
        ((version, packed),) = self.query(("HMGET", self.keys.run + run_id, "v", "row"))
        self.seen_runs.setdefault(run_id, ABSENT if version is None else version.decode())
        return None if packed is None else _read(RunRow, packed)

    def insert_run(self, row: RunRow) -> None:
        """Set the run's hash, and its position."""
        self.replace_run(row)
        self.record_changes.append(("ZADD", self.keys.runs, position_argument(self.new_position()), row.run_id))

    def replace_run(self, row: RunRow) -> None:
        """Set the run's hash."""
        change = ("HSET", self.keys.run + row.run_id, "v", self.version, "row", _pack(astuple(row)))
        self.record_changes.append(change)

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Read all runs, and evaluate the query."""
        (found,) = self.query(("EACH", "0", "-1", self.keys.run, self.keys.runs, "HGET", "row"))
        return evaluate([_read(RunRow, packed) for _, packed in found], query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """Read each step's key."""
        found = self.query(*(("GET", self._step(run_id, step)) for step in steps))
        rows = [_read(MetricsRow, packed) for packed in found if packed is not None]
        return {row.step: row for row in rows}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Set each step's key, and its position, which is the step."""
        self.replace_metrics(rows)
        for row in rows:
            self.record_changes.append(("ZADD", self.keys.steps + row.run_id, str(row.step), str(row.step)))

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Set each step's key."""
        for row in rows:
            self.record_changes.append(("SET", self._step(row.run_id, row.step), _pack(astuple(row))))

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """Read only the page; steps are always sorted by number."""
        run_id = query.within["run_id"]
        steps = self.keys.steps + run_id
        if not _is_one_word(run_id):
            return [], 0
        if query.limit == 0:
            return [], self.query(("ZCARD", steps))[0]
        first, last = _part(query)
        each = ("EACH", str(first), str(last), self._step(run_id, ""), steps, "GET")
        found, total = self.query(each, ("ZCARD", steps))
        rows = [_read(MetricsRow, packed) for _, packed in found]
        return rows[:: 1 if query.order == "asc" else -1], total

    def _step(self, run_id: str, step: int | str) -> str:
        return f"{self.keys.metrics}{run_id}:{step}"

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """Read the version's key."""
        (packed,) = self.query(("GET", self.keys.policy_version + _member(*key)))
        return None if packed is None else _read(VersionRow, packed)

    def insert_policy_version(self, row: VersionRow) -> None:
        """Set the version's key, and its positions among all versions and among those of its run."""
        self.replace_policy_version(row)
        number, member = position_argument(self.new_position()), _member(row.run_id, row.policy, row.version)
        for name in (self.keys.policy_versions, self._versions_of(row.run_id)):
            self.record_changes.append(("ZADD", name, number, member))

    def replace_policy_version(self, row: VersionRow) -> None:
        """Set the version's key."""
        key = self.keys.policy_version + _member(row.run_id, row.policy, row.version)
        self.record_changes.append(("SET", key, _pack(astuple(row))))

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Read one run's versions, or all, and evaluate the query."""
        run_id = query.within.get("run_id")
        if run_id is not None and not _is_one_word(run_id):
            return [], 0
        names = self.keys.policy_versions if run_id is None else self._versions_of(run_id)
        (found,) = self.query(("EACH", "0", "-1", self.keys.policy_version, names, "GET"))
        return evaluate([_read(VersionRow, packed) for _, packed in found], query)

    def _versions_of(self, run_id: str) -> str:
        return f"{self.keys.policy_versions}:{run_id}"

    def forget_after(self, run_id: str, step: int) -> None:
        """Delete the keys of later steps and versions, with their positions."""
        steps, versions = self.keys.steps + run_id, self._versions_of(run_id)
        later, members = self.query(("ZRANGEBYSCORE", steps, f"({step}", "+inf"), ("ZRANGE", versions, "0", "-1"))
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
    """Return the member for a version; the ids and names in it contain no colon."""
    return f"{run_id}:{policy}:{version}"


def _is_one_word(run_id: str) -> bool:
    """Whether such a run may exist; `EACH` separates names of sorted sets by spaces."""
    return run_id.split() == [run_id]


def _part(query: Query) -> tuple[int, int]:
    """Return the first and last position, in ascending order, of the steps in the page."""
    first, last = query.offset, -1 if query.limit < 0 else query.offset + query.limit - 1
    return (first, last) if query.order == "asc" else (0 if last < 0 else -1 - last, -1 - first)
