"""`OrphanedAttempts`: marks the attempts of dead processes `unresponsive`, so that their rollouts run again."""

import asyncio
import logging
from collections.abc import Callable

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore

SWEEPS = (0.0, 1.0, 3.0, 10.0)
"""Seconds to wait before each search for a dead worker's attempts.

One search is not enough. After it, the store may still grant the worker's last claim, and a late span may reopen an
attempt.
"""

logger = logging.getLogger(__name__)


class OrphanedAttempts:
    """Searches for attempts of dead workers, and of dead processes of attempts, and marks them `unresponsive`."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._sweeping: set[asyncio.Task[None]] = set()

    def sweep_worker(self, who: str, why: str, is_lost: Callable[[str], bool]) -> None:
        """Search for attempts of workers whose id satisfies `is_lost`, several times from now on.

        `who` names the workers in the failure's message, and `why` gives the reason.
        """
        failure = Failure(kind="worker", type="WorkerDied", message=f"{who} was lost: {why}")
        self.sweep(failure, lambda rollout: is_lost(rollout.attempt.worker_id or ""))

    def sweep(self, failure: Failure, is_lost: Callable[[AttemptedRollout], bool]) -> None:
        """Search several times, from now on, for attempts that satisfy `is_lost`, and mark them with `failure`."""
        task = asyncio.create_task(self._sweep(failure, is_lost))
        self._sweeping.add(task)
        task.add_done_callback(self._sweeping.discard)

    async def stop(self) -> None:
        """Cancel all searches."""
        tasks = list(self._sweeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self, failure: Failure, is_lost: Callable[[AttemptedRollout], bool]) -> None:
        for pause in SWEEPS:
            await asyncio.sleep(pause)
            try:
                for rollout in await self._store.query_rollouts(status_in=["preparing", "running"]):
                    if isinstance(rollout, AttemptedRollout) and is_lost(rollout):
                        await self._give_up(rollout, failure)
            except StoreError as error:
                logger.warning("the search for lost attempts failed (%s): %r", failure.message, error)

    async def _give_up(self, rollout: AttemptedRollout, failure: Failure) -> None:
        attempt = rollout.attempt
        metadata = {**attempt.metadata, "error": failure.metadata()}
        try:
            await self._store.update_attempt(
                rollout.rollout_id, attempt.attempt_id, status="unresponsive", metadata=metadata
            )
        except StoreError as error:
            logger.info("attempt %s had already ended: %s", attempt.attempt_id, error)
