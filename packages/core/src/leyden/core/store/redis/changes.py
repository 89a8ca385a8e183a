"""Conversion of a transaction's changes into the arguments of one commit, and into entries of the cache."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from leyden.core.store.common.rows import SpanRow
from leyden.core.store.redis.cache import CachedWorker, RedisCache
from leyden.core.store.redis.codec import (
    BETWEEN,
    RolloutAtRest,
    changed_fields,
    member,
    pack_row,
    pack_span,
    position_argument,
)
from leyden.core.store.redis.rows import RedisRows
from leyden.core.store.redis.scripts import FIRST_ARGUMENT, CommitHead, CommitMessage, chunks

Argument = bytes | str | int
"""An int is relative to the first serial number of the commit."""
Change = Sequence[Argument]
_LARGE_BYTES = 16 << 10
"""Spans with more bytes are sent before the script, since passing them through it would double their cost."""


def message(first: Sequence[str | bytes], rows: RedisRows, *, keep: bool, asks_file: bool) -> CommitMessage:
    """Return a commit whose arguments begin with `first`; without `keep`, it only checks versions that were read."""
    ahead = _large_spans(rows) if keep else {}
    changes = _changes(rows, ahead) if keep else []
    flat: list[bytes | str] = []
    serials: list[int] = []
    for change in changes:
        for argument in change:
            if isinstance(argument, int):
                serials.append(len(flat) + FIRST_ARGUMENT)
                flat.append(str(argument))
            else:
                flat.append(argument)
    head = CommitHead(
        checks=_checks(rows),
        absent=_absent(rows) if rows.uses_cache and keep else [],
        lengths=[len(change) for change in changes],
        serials=serials,
        fresh=rows.new_positions,
        asks_file=asks_file,
        ahead=[(name, len(packed)) for name, packed in ahead.items()],
    )
    return CommitMessage(
        arguments=[*first, msgspec.msgpack.encode(head), *flat],
        ahead=[("RPUSH", name, *packed) for name, packed in ahead.items()],
    )


def is_empty(rows: RedisRows) -> bool:
    """Whether the transaction wrote nothing."""
    return not (rows.written or rows.written_workers or rows.written_resources or rows.record_changes)


def update_cache(rows: RedisRows, cache: RedisCache, base: int) -> None:
    """Add what was read and written to the cache, with the positions that the commit assigned from `base` on."""
    for rollout in rows.seen.values():
        if rollout is not None and rollout.row.rollout_id not in rows.written:
            cache.keep(rollout)
    for rollout in rows.written.values():
        cache.keep(_placed(rollout, base))
    for worker_id, cached_worker in {**rows.seen_workers, **rows.written_workers}.items():
        cache.keep_worker(worker_id, _placed_worker(cached_worker, base))
    cache.resources = rows.written_resources or rows.seen_resources or cache.resources


def _placed(rollout: RolloutAtRest, base: int) -> RolloutAtRest:
    if rollout.position >= 0 and all(number >= 0 for number in rollout.positions.values()):
        return rollout
    positions = {name: _given(number, base) for name, number in rollout.positions.items()}
    return replace(rollout, position=_given(rollout.position, base), positions=positions)


def _placed_worker(cached_worker: CachedWorker, base: int) -> CachedWorker:
    held = {key: _given(number, base) for key, number in cached_worker.open.items()}
    return replace(cached_worker, position=_given(cached_worker.position, base), open=held)


def _given(number: int, base: int) -> int:
    return number if number >= 0 else base - 1 - number


def _checks(rows: RedisRows) -> list[tuple[str, str]]:
    checks = [(rows.keys.rollout + name, "" if seen is None else seen.version) for name, seen in rows.seen.items()]
    checks += [(rows.keys.worker + name, seen.version) for name, seen in rows.seen_workers.items()]
    checks += [(rows.keys.run + name, version) for name, version in rows.seen_runs.items()]
    if rows.seen_resources is not None:
        checks.append((rows.keys.resources, rows.seen_resources.version))
    return checks


def _absent(rows: RedisRows) -> list[list[str]]:
    return [
        [rows.keys.span_ids + name, *chunk]
        for name, spans in rows.new_spans.items()
        for chunk in chunks(_members(rows, name, spans))
    ]


def _members(rows: RedisRows, name: str, spans: Iterable[SpanRow]) -> list[str]:
    return [member(rows.written[name], row.attempt_id, row.span_id) for row in spans]


def _changes(rows: RedisRows, ahead: Mapping[str, Sequence[bytes]]) -> list[Change]:
    changes: list[Change] = []
    attempts = 0
    for name, new in rows.written.items():
        old = rows.seen.get(name)
        changes += _rollout_changes(rows, name, old, new)
        attempts += len(new.attempts) - (0 if old is None else len(old.attempts))
    if attempts:
        changes.append(("HINCRBY", rows.keys.counts, "attempts", str(attempts)))
    changes += _queue_changes(rows)
    changes += _span_changes(rows, ahead)
    for worker_id, cached_worker in rows.written_workers.items():
        changes += _worker_changes(rows, worker_id, rows.seen_workers[worker_id], cached_worker)
    return [*changes, *_resources_changes(rows), *rows.record_changes]


def _rollout_changes(rows: RedisRows, name: str, old: RolloutAtRest | None, new: RolloutAtRest) -> list[Change]:
    keys, row, before = rows.keys, new.row, None if old is None else old.row
    fields = changed_fields(old, new)
    changes: list[Change] = [("HSET", keys.rollout + name, *(part for field in fields.items() for part in field))]
    if before is None:
        position = position_argument(new.position)
        changes += [("ZADD", key, position, name) for key in (keys.rollouts, keys.rollouts_of(row.queue))]
    if before is None or before.status != row.status:
        if before is not None:
            changes.append(("ZREM", keys.status(before.status), name))
        changes.append(("ZADD", keys.status(row.status), position_argument(new.position), name))
    if row.deadline is not None and (before is None or before.deadline != row.deadline):
        changes.append(("ZADD", keys.deadlines, repr(row.deadline), name))
    elif row.deadline is None and before is not None and before.deadline is not None:
        changes.append(("ZREM", keys.deadlines, name))
    return changes


def _queue_changes(rows: RedisRows) -> list[Change]:
    keys = rows.keys
    changes: list[Change] = []
    for queue in sorted(set(rows.dropped.values())):
        names = sorted(name for name, of_queue in rows.dropped.items() if of_queue == queue)
        for chunk in chunks(names):
            changes += [("ZREM", keys.queue(queue), *chunk), ("HDEL", keys.held, *chunk)]
    for name, number in rows.queued.items():
        queue = rows.written[name].row.queue
        changes.append(("ZADD", keys.queue(queue), "NX", position_argument(number), name))
    return changes


def _span_changes(rows: RedisRows, ahead: Mapping[str, Sequence[bytes]]) -> list[Change]:
    changes: list[Change] = [("DEL", rows.keys.spans + name, rows.keys.span_ids + name) for name in rows.gone_spans]
    for name, spans in rows.new_spans.items():
        if rows.keys.spans + name not in ahead:
            packed = [pack_span(row) for row in spans]
            changes += [("RPUSH", rows.keys.spans + name, *chunk) for chunk in chunks(packed)]
        if not rows.uses_cache:  # otherwise the script adds those that it has not found
            changes += [("SADD", rows.keys.span_ids + name, *part) for part in chunks(_members(rows, name, spans))]
    stored = sum(map(len, rows.new_spans.values())) - sum(rows.gone_spans.values())
    return [*changes, ("HINCRBY", rows.keys.counts, "spans", str(stored))] if stored else []


def _large_spans(rows: RedisRows) -> dict[str, list[bytes]]:
    """Return all new spans by the key of their list where they are large; none where lists are deleted first."""
    size = sum(len(row.body) for spans in rows.new_spans.values() for row in spans)
    if size <= _LARGE_BYTES or rows.gone_spans:
        return {}
    return {rows.keys.spans + name: [pack_span(row) for row in spans] for name, spans in rows.new_spans.items()}


def _worker_changes(rows: RedisRows, worker_id: str, old: CachedWorker, new: CachedWorker) -> list[Change]:
    keys = rows.keys
    fields: list[Argument] = ["v", new.version]
    changes: list[Change] = []
    if new.row is not None and new.row is not old.row:
        fields += ["row", pack_row(new.row)]
    if new.row is not None and old.row is None:
        fields += ["n", position_argument(new.position)]
        changes.append(("ZADD", keys.workers, position_argument(new.position), worker_id))
    changes.append(("HSET", keys.worker + worker_id, *fields))
    for key in old.open.keys() - new.open.keys():
        changes.append(("ZREM", keys.open + worker_id, BETWEEN.join(key)))
    for key, number in new.open.items():
        if key not in old.open:
            changes.append(("ZADD", keys.open + worker_id, position_argument(number), BETWEEN.join(key)))
    return changes


def _resources_changes(rows: RedisRows) -> list[Change]:
    keys = rows.keys
    changes: list[Change] = []
    for row, number in rows.new_resources:
        packed = pack_row(row)
        changes.append(("HSET", keys.versions + row.resources_id, str(row.version), packed, "current", packed))
        changes.append(("ZADD", keys.resources_ids, position_argument(number), row.resources_id))
    if rows.written_resources is not None and rows.written_resources.latest is not None:
        packed = pack_row(rows.written_resources.latest)
        changes.append(("HSET", keys.resources, "v", rows.version, "row", packed))
    return changes
