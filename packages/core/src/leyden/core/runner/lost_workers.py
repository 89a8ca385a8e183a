"""`LostWorkers`: tells a store that dead workers' attempts will not go on. Knows nothing of how a worker died."""

import asyncio
import logging
from collections.abc import Callable

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import StoreError
from leyden.core.runner.annotations import Failure
from leyden.core.store.base import LightningStore

SWEEPS = (0.0, 1.0, 3.0, 10.0)
"""Seconds between the looks for a dead worker's attempts: its last claim may be granted, and a late span may revive an
attempt, after the first look."""

logger = logging.getLogger(__name__)


class LostWorkers:
    """Marks the attempts of dead workers `unresponsive`, so that the store can give their rollouts to others."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._sweeping: set[asyncio.Task[None]] = set()

    def sweep(self, who: str, why: str, is_lost: Callable[[str], bool]) -> None:
        """Look several times, from now on, for attempts of workers whose id `is_lost`; `who` they are is noted."""
        failure = Failure(kind="worker", type="WorkerDied", message=f"{who} was lost: {why}")
        task = asyncio.create_task(self._sweep(who, failure, is_lost))
        self._sweeping.add(task)
        task.add_done_callback(self._sweeping.discard)

    async def stop(self) -> None:
        """Look no more."""
        tasks = list(self._sweeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self, who: str, failure: Failure, is_lost: Callable[[str], bool]) -> None:
        for pause in SWEEPS:
            await asyncio.sleep(pause)
            try:
                for rollout in await self._store.query_rollouts(status_in=["preparing", "running"]):
                    if isinstance(rollout, AttemptedRollout) and is_lost(rollout.attempt.worker_id or ""):
                        await self._give_up(rollout, failure)
            except StoreError as error:
                logger.warning("the attempts of %s could not be looked at: %r", who, error)

    async def _give_up(self, rollout: AttemptedRollout, failure: Failure) -> None:
        attempt = rollout.attempt
        metadata = {**attempt.metadata, "error": failure.metadata()}
        try:
            await self._store.update_attempt(
                rollout.rollout_id, attempt.attempt_id, status="unresponsive", metadata=metadata
            )
        except StoreError as error:
            logger.info("attempt %s had ended already: %s", attempt.attempt_id, error)
