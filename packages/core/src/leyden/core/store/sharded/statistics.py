"""Counts of all shards, and of each."""

from typing import Any

import msgspec

from leyden.core.store.common.rows import Rows
from leyden.core.store.query import Query
from leyden.core.store.sharded.shards import UNFINISHED, Shards

_SUMMED = ("total_rollouts", "total_attempts", "total_spans", "queue_length")


class _Counts(msgspec.Struct, frozen=True):
    """Counts of one shard."""

    counts: dict[str, int]
    unfinished: int
    workers: list[str]


def _count(rows: Rows) -> _Counts:
    workers = [row.worker_id for row in rows.select_workers(Query())[0]]
    return _Counts(rows.counts(), rows.select_rollouts(UNFINISHED)[1], workers)


async def statistics_of(shards: Shards) -> dict[str, Any]:
    """Return sums over the shards that can be reached, and `shards`: by name, the state of each and its own counts.

    A shard whose `unfinished_rollouts` are 0 while it is draining can be removed from the list, once its data are no
    longer read. Instead of counts, a shard that cannot be reached has its `problem`.
    """
    answers = (await shards.ask(_count)).require()
    found = answers.by_shard.values()
    totals: dict[str, Any] = {name: sum(each.counts[name] for each in found) for name in _SUMMED}
    totals["total_resources"] = max(each.counts["total_resources"] for each in found)
    totals["total_workers"] = len({name for each in found for name in each.workers})
    by_name: dict[str, dict[str, Any]] = {}
    for shard in await shards.all():
        known = answers.by_shard.get(shard)
        by_name[shard.name] = {"state": shard.state, "address": shard.address}
        if known is None:
            by_name[shard.name]["problem"] = shard.problem
        else:
            counts = {name: known.counts[name] for name in _SUMMED}
            by_name[shard.name] |= {**counts, "unfinished_rollouts": known.unfinished}
    return {**totals, "shards": by_name}
