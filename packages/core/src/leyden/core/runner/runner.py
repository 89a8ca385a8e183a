"""`Runner`: claims rollouts and runs many attempts at once on one event loop. Knows nothing of worker processes.

One loop for all attempts, because a client that an agent module keeps for itself works on the loop it was first used
on, and on no other.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from leyden.core.data.rollout import FINISHED_ATTEMPT, AttemptedRollout, Rollout
from leyden.core.errors import StoreError
from leyden.core.runner.adapters import AgentSource
from leyden.core.runner.annotations import Failure
from leyden.core.runner.attempt import AttemptRun
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.input_function import check_input_function
from leyden.core.runner.known_resources import KnownResources
from leyden.core.runner.reward import check_reward_function
from leyden.core.store.base import LightningStore

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0
"""Seconds between claims while the store cannot be reached."""


async def _nothing_to_flush() -> None:
    pass


class Runner:
    """Runs what the store has queued, `config.concurrency` attempts at once, each with an agent of its own.

    `flush` is awaited before an attempt is marked: it must store the spans that are still on their way.
    Raises RewardError when the configured reward cannot be called with a task and a result, UsageError when the
    input function cannot be called with a task.
    """

    def __init__(
        self,
        store: LightningStore,
        source: AgentSource,
        *,
        config: RunnerConfig,
        flush: Callable[[], Awaitable[None]] = _nothing_to_flush,
    ) -> None:
        if config.reward is not None:
            check_reward_function(config.reward)
        if config.input is not None:
            check_input_function(config.input)
        self.store, self.source, self.config, self.flush = store, source, config, flush
        self.resources = KnownResources(store)
        self.finished = 0
        """Attempts run to their end."""
        self._running: dict[asyncio.Task[None], AttemptRun] = {}

    @property
    def running(self) -> int:
        """Attempts that run now."""
        return len(self._running)

    async def run_until(self, stopped: asyncio.Event) -> None:
        """Claim and run until `stopped` is set, then cancel what runs and put it back in the queue."""
        stopping = asyncio.create_task(stopped.wait())
        beating = asyncio.create_task(self._beat())
        try:
            while not stopped.is_set():
                free = self.config.concurrency - len(self._running)
                if free <= 0:
                    await asyncio.wait({*self._running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                claimed = await self._claim(free, stopping)
                if stopped.is_set():
                    await self._put_back(claimed)
                else:
                    self._start(claimed)
        finally:
            stopping.cancel()
            beating.cancel()
            await self._stop()

    # --- Claims

    async def _claim(self, free: int, stopping: asyncio.Task[bool]) -> list[AttemptedRollout]:
        """Wait for work. A claim on its way is never cancelled: the store may have granted it."""
        pause = 0.1
        while not stopping.done():
            try:
                return await self.store.dequeue_many_rollouts(
                    limit=free, worker_id=self.config.worker_id, timeout=self.config.poll_seconds
                )
            except Exception as error:
                logger.warning("nothing can be claimed, trying again in %.1f s: %r", pause, error)
                await asyncio.wait({stopping}, timeout=pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return []

    def _start(self, claimed: list[AttemptedRollout]) -> None:
        for rollout in claimed:
            run = AttemptRun(self, rollout)
            task = asyncio.create_task(run.run())
            self._running[task] = run
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        run = self._running.pop(task)
        self.finished += not task.cancelled()
        if not task.cancelled() and task.exception() is not None:
            # Nothing more can be said of the attempt: the store will find it unresponsive.
            logger.error("attempt of rollout %s was lost", run.rollout.rollout_id, exc_info=task.exception())

    async def _stop(self) -> None:
        running = dict(self._running)
        for task, run in running.items():
            if not run.agent_is_done:
                task.cancel()
        if running:
            await asyncio.wait(running)
        await self._put_back([run.rollout for task, run in running.items() if task.cancelled()])

    async def _put_back(self, rollouts: list[AttemptedRollout]) -> None:
        """Queue again what was claimed and not finished; a stop is nobody's failure and uses up no attempt."""
        for rollout in rollouts:
            try:
                current = await self.store.get_rollout_by_id(rollout.rollout_id)
                if _is_ours(current, rollout):
                    await self.store.update_rollout(rollout.rollout_id, status="requeuing")
            except Exception as error:
                logger.warning("rollout %s could not be put back: %r", rollout.rollout_id, error)

    # --- Heartbeats

    async def _beat(self) -> None:
        """Keep the store informed for as long as attempts run, and give up those that it has closed."""
        while True:
            await asyncio.sleep(self.config.heartbeat_seconds)
            try:
                await self._beat_once()
            except Exception as error:
                logger.warning("heartbeat failed: %r", error)

    async def _beat_once(self) -> None:
        await self.store.update_worker(self.config.worker_id, heartbeat_stats={"running": len(self._running)})
        runs = {run.rollout.rollout_id: (task, run) for task, run in self._running.items()}
        if not runs:
            return
        found = await self.store.query_rollouts(rollout_id_in=list(runs))
        await asyncio.gather(*(self._beat_for(*runs[rollout.rollout_id], rollout) for rollout in found))

    async def _beat_for(self, task: asyncio.Task[None], run: AttemptRun, found: Rollout) -> None:
        if task.done() or run.agent_is_done:
            return
        if not _is_ours(found, run.rollout):
            why = f"the rollout is {found.status} and no longer waits for this attempt"
            await run.abandon(Failure(kind="cancelled", type="Cancelled", message=why))
            return
        ids = found.rollout_id, run.rollout.attempt.attempt_id
        try:
            await self.store.update_attempt(*ids, last_heartbeat_time=time.time())
        except StoreError as error:
            logger.info("no heartbeat for attempt %s: %s", ids[1], error)


def _is_ours(found: Rollout | None, claimed: AttemptedRollout) -> bool:
    """Whether the store still waits for the attempt that `claimed` names."""
    if not isinstance(found, AttemptedRollout) or found.status == "cancelled":
        return False
    return found.attempt.attempt_id == claimed.attempt.attempt_id and found.attempt.status not in FINISHED_ATTEMPT
