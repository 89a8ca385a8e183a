"""One writer of the store campaign: queues, claims, adds spans and finishes, and notes what the store acknowledged.

    python -m kills.store_writer URI JOURNAL NAME STOP

Ends when the file STOP exists and nothing is left to be finished. An error of the store is noted and lived with, as
rollouts that nobody holds any more fall due and are claimed again.
"""

import asyncio
import random
import sys
from pathlib import Path

from kills.journal import note
from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store

SILENCE = 3.0
"""Seconds without a span after which an attempt is given up."""
CONFIG = RolloutConfig(unresponsive_seconds=SILENCE, max_attempts=100, retry_condition=("unresponsive",))
AT_ONCE = 4


class Writer:
    """Several loops over one store."""

    def __init__(self, store: LightningStore, journal: Path, name: str, stop: Path) -> None:
        self._store, self._journal, self._name, self._stop = store, journal, name, stop

    async def work(self) -> None:
        """Work until there is nothing left."""
        await asyncio.gather(*(self._loop(n) for n in range(AT_ONCE)))

    async def _loop(self, n: int) -> None:
        while True:
            try:
                if not self._stop.exists():
                    await self._queue(random.choice((1, 1, 1, 12)))
                claims = await self._store.dequeue_many_rollouts(
                    limit=random.randint(1, 8), worker_id=f"{self._name}-{n}", timeout=0.2
                )
                for claim in claims:
                    self._note("claim", claim.rollout_id, attempt=claim.attempt.attempt_id)
                for claim in claims:
                    await self._run(claim)
                if not claims and self._stop.exists() and await self._is_all_done():
                    return
            except StoreError as error:
                self._note("error", "", text=str(error))
                await asyncio.sleep(0.05)

    async def _queue(self, count: int) -> None:
        queued = await self._store.enqueue_many_rollouts([EnqueueRollout(input=n, config=CONFIG) for n in range(count)])
        for rollout in queued:
            self._note("rollout", rollout.rollout_id)

    async def _run(self, claim: AttemptedRollout) -> None:
        attempt = claim.attempt
        for size in random.choices((1, 1, 2, 20), k=3):
            spans = [
                Span(
                    rollout_id=claim.rollout_id,
                    attempt_id=attempt.attempt_id,
                    sequence_id=0,
                    trace_id=f"{1:032x}",
                    span_id=f"{random.getrandbits(64):016x}",
                    name="chat",
                    start_time=1.0,
                    attributes={"ids": random.randbytes(200)},
                )
                for _ in range(size)
            ]
            for span in await self._store.add_many_spans(spans):
                self._note("span", span.rollout_id, span=span.span_id, number=span.sequence_id)
        await self._store.update_attempt(claim.rollout_id, attempt.attempt_id, status="succeeded")
        self._note("end", claim.rollout_id, attempt=attempt.attempt_id)

    async def _is_all_done(self) -> bool:
        unfinished = await self._store.query_rollouts(
            status_in=["queuing", "requeuing", "preparing", "running"], limit=1
        )
        return unfinished.total == 0

    def _note(self, kind: str, rollout_id: str, **more: str | int) -> None:
        note(self._journal, kind=kind, rollout=rollout_id, writer=self._name, **more)


async def opened(uri: str) -> LightningStore:
    """Open the store as soon as there is a server."""
    while True:
        try:
            return await open_store(uri)
        except (StoreError, UsageError):
            await asyncio.sleep(0.1)


async def main(uri: str, journal: str, name: str, stop: str) -> None:
    """Open the store, work, close it."""
    store = await opened(uri)
    note(journal, kind="open", rollout="", writer=name)
    await Writer(store, Path(journal), name, Path(stop)).work()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
