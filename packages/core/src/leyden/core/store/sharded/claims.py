"""`Claims`: the queue of all shards as one queue, the oldest rollout of all first.

A claim reads the head of every shard's queue, and then claims from those shards that have the oldest rollouts. A shard
that does not answer in time is left out. Waiting callers are notified by whichever shard gets a rollout first.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.common import lifecycle
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.named_requests import idempotent_attempts
from leyden.core.store.common.notifier import Waiter
from leyden.core.store.common.rows import Rows, encode
from leyden.core.store.sharded.locations import DUPLICATE, Locations, best, copies_of, is_own_id
from leyden.core.store.sharded.numbers import NUMBERS, for_each_try
from leyden.core.store.sharded.shard import Shard
from leyden.core.store.sharded.shard_list import LOOK_SECONDS
from leyden.core.store.sharded.shards import RETURNED, SOON, Shards


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """Arguments of a claim."""

    queue: str
    limit: int
    worker_id: str | None
    id: str | None
    """Request id; a request with an id is made once."""


class Claims:
    """Claims from all shards."""

    def __init__(self, shards: Shards, locations: Locations) -> None:
        self._shards = shards
        self._locations = locations

    async def claim(self, request: ClaimRequest, *, notes_idle: bool = True) -> list[AttemptedRollout]:
        """Claim rollouts. With `notes_idle`, a claim that finds nothing makes its worker idle."""
        limit = request.limit
        if request.id is not None:
            granted = await self._granted(request.id, request.queue)
            if granted is not None:
                return granted
        claimed: list[AttemptedRollout] = []
        done: set[Shard] = set()
        """Shards whose queued rollouts are being claimed by others, or that have made this request."""
        while len(claimed) < limit:
            shards = [shard for shard in await self._shards.all() if shard not in done]
            wanted = limit - len(claimed)
            heads = await self._shards.ask(_reading_head(request.queue, wanted), seconds=SOON, among=shards)
            if not claimed and not done:
                heads.require()
            queued = sorted(
                ((position, name, shard) for shard, head in heads.by_shard.items() for position, name in head),
                key=lambda each: each[:2],
            )[:wanted]
            if not queued:
                break
            found = await self._from_shards(queued, request)
            asked = {shard for _, _, shard in queued}
            done |= asked if request.id is not None else asked - found.keys()
            claimed += [each for _, each in sorted(chain(*found.values()), key=lambda pair: pair[0])]
        if not claimed and request.worker_id and limit > 0 and notes_idle:
            claimed = await self._note_idle(request.worker_id, request)
        return claimed

    async def wait(self, queue: str, timeout: float) -> None:
        """Return when a shard has something in the queue, when the shards change, or after `timeout` seconds."""
        with self._shards.notifier.listen({RETURNED}) as changed:
            shards = await self._shards.reachable()
            waits = [asyncio.create_task(_waited(changed, timeout))]
            waits += [asyncio.create_task(shard.call(_waiting_for_queue(queue, timeout))) for shard in shards]
            try:
                await self._first(waits, timeout)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _first(self, waits: Sequence["asyncio.Task[Any]"], timeout: float) -> None:
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waits, timeout=min(left, LOOK_SECONDS), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            await self._shards.all()  # it notifies of a changed list

    async def made_on(self, request_id: str) -> Shard | None:
        """Return a shard that has made a request before, or None."""
        return next(iter(await self._all_made_on(request_id)), None)

    async def _all_made_on(self, request_id: str) -> list[Shard]:
        known = await self._shards.ask(lambda rows: rows.recorded_answer(request_id) is not None, seconds=SOON)
        return [shard for shard, is_made in known.require().by_shard.items() if is_made]

    async def _granted(self, request_id: str, queue: str) -> list[AttemptedRollout] | None:
        """Return what a request has claimed before, as far as it is open and the latest; None for a new request."""
        made = await self._all_made_on(request_id)
        if not made:
            return None

        def again(rows: Rows) -> list[tuple[int, AttemptedRollout]]:
            found = idempotent_attempts(rows, request_id, lambda rows: [], queue)
            attempts = rows.attempts([(each.rollout_id, each.attempt.attempt_id) for each in found])
            return list(zip(rows.positions(list(attempts.values())), found, strict=True))

        answers = (await self._shards.ask(again, among=made)).require()
        return [each for _, each in sorted(chain(*answers.by_shard.values()), key=lambda pair: pair[0])]

    async def _from_shards(
        self, queued: Sequence[tuple[int, str, Shard]], request: ClaimRequest
    ) -> dict[Shard, list[tuple[int, AttemptedRollout]]]:
        """Claim as many rollouts from each shard as it has among the oldest; return those of shards that had some.

        The number of each is its place in the queue, as far as that is known.
        """
        order = {name: index for index, (_, name, _) in enumerate(queued)}
        shares: dict[Shard, list[int]] = {}
        for number, (_, _, shard) in zip(NUMBERS.block(len(queued)), queued, strict=True):
            shares.setdefault(shard, []).append(number)
        calls = {shard: _claiming(share, request) for shard, share in shares.items()}
        answers = await self._shards.call_each(calls)
        claimed: dict[Shard, list[tuple[int, AttemptedRollout]]] = {}
        for shard, found in answers.by_shard.items():
            self._locations.note([each.rollout_id for each in found], shard)
            kept = await self._without_duplicates(shard, found)
            if found:
                claimed[shard] = [(order.get(each.rollout_id, len(order)), each) for each in kept]
        return claimed

    async def _without_duplicates(self, shard: Shard, claimed: list[AttemptedRollout]) -> list[AttemptedRollout]:
        """Cancel and leave out rollouts of which another shard has the copy that counts; see `locations`."""
        names = [each.rollout_id for each in claimed if not is_own_id(each.rollout_id)]
        if not names or len(await self._shards.all()) < 2:
            return claimed
        copies = (await self._shards.ask(lambda rows: copies_of(rows, names), seconds=SOON)).by_shard
        kept: list[AttemptedRollout] = []
        for each in claimed:
            name = each.rollout_id
            counts = best(name, {there: found[name] for there, found in copies.items() if name in found})
            if counts is None or counts is shard:
                kept.append(each)
            else:
                self._locations.note([name], counts)
                notes = {**each.metadata, DUPLICATE: f"shard {counts.name} has this rollout too, and its copy counts"}
                await shard.call(_cancelling(name, each.attempt.attempt_id, notes))
        return kept

    async def _note_idle(self, worker_id: str, request: ClaimRequest) -> list[AttemptedRollout]:
        """Record that a worker found nothing, where it is busy or on its own shard; claim what was queued just now."""
        answers = await self._shards.ask(lambda rows: rows.worker(worker_id), seconds=SOON)
        busy = [shard for shard, row in answers.by_shard.items() if row is not None and row.status == "busy"]
        shard = busy[0] if busy else await self._shards.first_reachable(worker_id)
        found = await shard.call(_claiming([next(NUMBERS)], request))
        self._locations.note([each.rollout_id for each in found], shard)
        return await self._without_duplicates(shard, found)


def _reading_head(queue: str, limit: int) -> Callable[[Rows], list[tuple[int, str]]]:
    return lambda rows: rows.queue_head(queue, limit)


def _claiming(numbers: Sequence[int], request: ClaimRequest) -> Callable[[LocalStore], Any]:
    """Return a call that claims one rollout for each of `numbers`, the positions of their attempts."""
    positions = for_each_try(numbers)

    def claim(rows: Rows) -> list[AttemptedRollout]:
        rows.given_positions = chain(positions(), NUMBERS)
        return idempotent_attempts(
            rows,
            request.id,
            lambda rows: lifecycle.claim(rows, request.queue, len(numbers), request.worker_id),
            request.queue,
        )

    return lambda store: store.transact(claim, write=True)


def _cancelling(rollout_id: str, attempt_id: str, notes: dict[str, str]) -> Callable[[LocalStore], Any]:
    metadata = encode(notes, "the metadata of a rollout")

    def cancel(rows: Rows) -> None:
        lifecycle.update_rollout(rows, rollout_id, {"status": "cancelled", "metadata": metadata})
        lifecycle.update_attempt(rows, rollout_id, attempt_id, {"status": "failed"})

    return lambda store: store.transact(cancel, write=True)


def _waiting_for_queue(queue: str, timeout: float) -> Callable[[LocalStore], Any]:
    async def wait(store: LocalStore) -> bool | None:
        async def look() -> bool | None:
            return bool(await store.transact(lambda rows: rows.head(queue, 1), write=False)) or None

        return await store.wait_until(look, {lifecycle.queue_topic(queue)}, timeout)

    return wait


async def _waited(waiter: Waiter, timeout: float) -> None:
    await waiter.wait(timeout)
