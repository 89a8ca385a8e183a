"""Waiting for rollouts of several shards to finish."""

import asyncio
import time
from collections.abc import Sequence

from leyden.core.data.rollout import Rollout
from leyden.core.errors import StoreError
from leyden.core.store.sharded.locations import Locations
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shards import RETURNED, Shards

_PAUSE = 1.0
"""Seconds after which rollouts on a shard that cannot be reached are searched again, unless it returns sooner."""


async def wait_for_rollouts(
    shards: Shards, locations: Locations, rollout_ids: Sequence[str], timeout: float | None
) -> list[Rollout]:
    """Wait until all are finished; return those that are finished within `timeout` seconds, in the order of the ids.

    Unknown ids are left out. A rollout that may be on a shard that cannot be reached counts as unfinished.
    """
    end = None if timeout is None else time.monotonic() + timeout
    pending = dict.fromkeys(rollout_ids)
    finished: dict[str, Rollout] = {}
    while pending:
        with shards.notifier.listen({RETURNED}) as changed:
            found, missing = await locations.rollouts(list(pending))
            if not missing:
                for unknown in pending.keys() - found.keys():
                    del pending[unknown]
            left = None if end is None else max(end - time.monotonic(), 0.0)
            for rollout in await _wait_on_each(found, left if not missing else _shorter(left)):
                finished[rollout.rollout_id] = rollout
                pending.pop(rollout.rollout_id, None)
            if not pending or (end is not None and time.monotonic() >= end):
                break
            if missing or any(shard.is_down for shard in set(found.values())):
                await changed.wait(_shorter(None if end is None else end - time.monotonic()))
    return [finished[rollout_id] for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in finished]


def _shorter(left: float | None) -> float:
    return _PAUSE if left is None else min(left, _PAUSE)


async def _wait_on_each(found: dict[str, Shard], timeout: float | None) -> list[Rollout]:
    """Wait on each shard for its rollouts; return what is finished. Shards that fail meanwhile return nothing."""
    groups: dict[Shard, list[str]] = {}
    for rollout_id, shard in found.items():
        groups.setdefault(shard, []).append(rollout_id)
    waits = [
        asyncio.create_task(
            shard.call(lambda store, ids=ids: store.wait_for_rollouts(rollout_ids=ids, timeout=timeout))
        )
        for shard, ids in groups.items()
    ]
    try:
        answers = await asyncio.gather(*waits, return_exceptions=True)
    finally:
        for wait in waits:
            wait.cancel()
    done: list[Rollout] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            if not isinstance(answer, StoreError):
                raise answer
        else:
            done += answer
    return done
