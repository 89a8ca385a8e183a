"""Workers of all shards: each shard knows a worker by the attempts that it has of it, and the rows are merged."""

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from leyden.core.data.page import Page
from leyden.core.data.worker import Worker
from leyden.core.errors import StoreError
from leyden.core.store.common.rows import Rows, WorkerRow, to_worker
from leyden.core.store.query import Query, evaluate
from leyden.core.store.sharded.shards import Shards


class WorkerPart(msgspec.Struct, frozen=True):
    """A worker's row on one shard, its position, and that of its current attempt."""

    row: WorkerRow
    position: int
    attempt: int = 0


def parts_on(rows: Rows, found: Sequence[WorkerRow]) -> list[WorkerPart]:
    """Return the parts for rows that were read in this transaction."""
    positions = rows.positions(found)
    current = [(row.current_rollout_id or "", row.current_attempt_id or "") for row in found]
    attempts = rows.attempts([key for key in current if all(key)]) if any(map(all, current)) else {}
    numbers = dict(zip(attempts, rows.positions(list(attempts.values())), strict=True))
    return [
        WorkerPart(row, position, numbers.get(key, 0))
        for row, position, key in zip(found, positions, current, strict=True)
    ]


def merged(parts: Sequence[WorkerPart]) -> WorkerRow:
    """Return one row for the worker.

    It is busy where it is busy on any shard, with the attempt that began last. Otherwise its status is the one on the
    shard where it last claimed, began or ended something. Statistics are those of its last heartbeat.
    """
    busy = [part for part in parts if part.row.status == "busy"]
    lead = max(busy, key=lambda part: part.attempt) if busy else max(parts, key=lambda part: _last_time(part.row))
    # on another shard, it became idle at most for that shard while it was busy here
    before = min((part.row.last_busy_time or 0.0 for part in busy), default=math.inf)
    idle = (time for time in (part.row.last_idle_time for part in parts) if time is None or time <= before)
    heard = max(parts, key=lambda part: part.row.last_heartbeat_time or 0.0)
    return replace(
        lead.row,
        heartbeat_stats=heard.row.heartbeat_stats,
        last_heartbeat_time=_latest(part.row.last_heartbeat_time for part in parts),
        last_dequeue_time=_latest(part.row.last_dequeue_time for part in parts),
        last_busy_time=_latest(part.row.last_busy_time for part in parts),
        last_idle_time=_latest(idle),
    )


def _last_time(row: WorkerRow) -> float:
    return _latest((row.last_dequeue_time, row.last_busy_time, row.last_idle_time)) or 0.0


def _latest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)


async def find_worker(shards: Shards, worker_id: str) -> Worker | None:
    """Return one worker, or None. Raises StoreError where only a shard that cannot be reached may know it."""

    def read(rows: Rows) -> list[WorkerPart]:
        row = rows.worker(worker_id)
        return [] if row is None else parts_on(rows, [row])

    answers = (await shards.ask(read)).require()
    parts = [part for found in answers.by_shard.values() for part in found]
    if not parts and answers.missing:
        raise StoreError(f"worker {worker_id} is on no shard that can be reached; {'; '.join(answers.problems)}")
    return to_worker(merged(parts)) if parts else None


async def page_of_workers(shards: Shards, query: Query) -> Page[Worker]:
    """Return a page of the workers of all shards that can be reached; the page names the others."""
    answers = (await shards.ask(lambda rows: parts_on(rows, rows.select_workers(Query())[0]))).require()
    by_id: dict[str, list[WorkerPart]] = {}
    for found in answers.by_shard.values():
        for part in found:
            by_id.setdefault(part.row.worker_id, []).append(part)
    in_order = sorted(by_id.values(), key=lambda parts: min(part.position for part in parts))
    rows, total = evaluate([merged(parts) for parts in in_order], query)
    items = [to_worker(row) for row in rows]
    return Page(items=items, limit=query.limit, offset=query.offset, total=total, missing=answers.problems)
