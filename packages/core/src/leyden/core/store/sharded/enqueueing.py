"""New rollouts: which shard each is placed on, and that a rollout whose id is already stored is not stored again."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, Rollout, RolloutConfig
from leyden.core.errors import CallRefused, StoreError
from leyden.core.store.common import lifecycle
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.named_requests import idempotent_attempts
from leyden.core.store.common.rows import Rows, encode
from leyden.core.store.sharded.locations import Copy, Locations, best, copies_of, new_rollout_id
from leyden.core.store.sharded.numbers import NUMBERS, for_each_try
from leyden.core.store.sharded.placement import ranked, weight
from leyden.core.store.sharded.resources import SharedResources, Version, latest_version
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shards import SOON, Answers, Shards
from leyden.core.store.state_and_retry_rules import check_config, check_mode

_FEW = 8
"""Up to this many rollouts count as a small write."""


class _Known(msgspec.Struct, frozen=True):
    """What a shard knows before new rollouts are stored."""

    latest: Version
    copies: dict[str, Copy]
    is_made: bool
    """Whether it has made this request."""


def check_requests(requests: Sequence[EnqueueRollout]) -> None:
    """Raise the error for a rollout that no shard would store, so that none of them is stored."""
    for request in requests:
        check_config(request.config or RolloutConfig())
        check_mode(request.mode)
        encode(request.input, "the input of a rollout")
        encode(request.metadata or {}, "the metadata of a rollout")


class Enqueueing:
    """Stores new rollouts on the shards."""

    def __init__(self, shards: Shards, locations: Locations, resources: SharedResources) -> None:
        self._shards, self._locations, self._resources = shards, locations, resources

    async def enqueue(self, requests: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Queue new rollouts and return all, in order; one whose id is already stored is returned unchanged."""
        check_requests(requests)
        named = list(dict.fromkeys(request.rollout_id for request in requests if request.rollout_id))
        known, usable = await self._look(named)
        shards_now = await self._shards.all()
        ids = [request.rollout_id or _id_on(usable, shards_now) for request in requests]
        shards: dict[str, Shard] = {}
        for rollout_id in ids:
            copies = {
                shard: each.copies[rollout_id] for shard, each in known.by_shard.items() if rollout_id in each.copies
            }
            shards[rollout_id] = best(rollout_id, copies) or _chosen(usable, rollout_id, known)
        parts: dict[Shard, list[tuple[int, EnqueueRollout]]] = {}
        for position, rollout_id, request in zip(NUMBERS.block(len(ids)), ids, requests, strict=True):
            named_request = replace(request, rollout_id=rollout_id)
            parts.setdefault(shards[rollout_id], []).append((position, named_request))
        stored = await self._shards.call_all({shard: _storing(part) for shard, part in parts.items()})
        for shard, rollouts in stored.items():
            self._locations.note([rollout.rollout_id for rollout in rollouts], shard)
        left = {shard: iter(rollouts) for shard, rollouts in stored.items()}
        return [next(left[shards[rollout_id]]) for rollout_id in ids]

    async def start(self, request: EnqueueRollout, worker_id: str | None, request_id: str | None) -> AttemptedRollout:
        """Store a rollout with its first attempt; with a request id, only once.

        Raises CallRefused where the attempt of the first call is no longer open or the latest.
        """
        check_requests([request])
        known, usable = await self._look([], request_id)
        made_on = next((shard for shard, each in known.by_shard.items() if each.is_made), None)
        # the same request chooses the same shard, which makes it once even if it is sent twice at the same time
        shard = made_on or _chosen(usable, request_id or new_rollout_id(), known)
        named = replace(request, rollout_id=_id_on([shard], await self._shards.all()))

        def work(rows: Rows) -> list[AttemptedRollout]:
            return idempotent_attempts(
                rows, request_id, lambda rows: [lifecycle.start(rows, named, worker_id)], request.queue
            )

        made = await shard.call(lambda store: store.transact(work, write=True))
        if not made:
            raise CallRefused(f"the attempt that request {request_id} began has ended, or is no longer the latest")
        self._locations.note([made[0].rollout_id], shard)
        return made[0]

    async def _look(self, named: Sequence[str], request_id: str | None = None) -> tuple[Answers[_Known], list[Shard]]:
        """Return what the shards know, and those that can take new rollouts."""

        def look(rows: Rows) -> _Known:
            is_made = request_id is not None and rows.recorded_answer(request_id) is not None
            return _Known(latest_version(rows), copies_of(rows, named), is_made)

        known = (await self._shards.ask(look, seconds=SOON)).require()
        behind = await self._resources.agree({shard: each.latest for shard, each in known.by_shard.items()})
        return known, [shard for shard in known.by_shard if shard.state == "active" and shard not in behind]


def _id_on(wanted: Sequence[Shard], shards: Sequence[Shard]) -> str:
    """Return a new id whose first choice among all shards is a wanted one, so that it is found there at once."""
    possible = {shard.name for shard in shards} & {shard.name for shard in wanted}
    while True:
        rollout_id = new_rollout_id()
        first = max(shards, key=lambda shard: weight(shard.name, rollout_id))
        if first.name in possible or not possible:
            return rollout_id


def _storing(part: Sequence[tuple[int, EnqueueRollout]]) -> Callable[[LocalStore], Awaitable[list[Rollout]]]:
    """Return a call that queues rollouts, each at its position."""
    positions, requests = for_each_try([position for position, _ in part]), [request for _, request in part]

    def work(rows: Rows) -> list[Rollout]:
        return lifecycle.enqueue(rows, requests, positions())

    return lambda store: store.transact(work, write=True, small=len(part) <= _FEW)


def _chosen(usable: Sequence[Shard], key: str, known: Answers[_Known]) -> Shard:
    """Return the first of the usable shards by rank; raises StoreError where there is none."""
    if not usable:
        known_down = "; ".join(known.problems) or "all others are draining"
        raise StoreError(f"no shard takes new rollouts: {known_down}")
    return ranked(usable, key)[0]
