"""`Runner`: claims rollouts from the store and runs many attempts concurrently on one event loop.

All attempts share one loop. An async client that an agent module keeps works only on the loop of its first use.
"""

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import FINISHED_ATTEMPT, AttemptedRollout, Rollout
from leyden.core.errors import StoreError
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.attempts.agent_run import Resources
from leyden.core.runner.attempts.attempt import AttemptRun
from leyden.core.runner.attempts.loop_watch import LoopWatch
from leyden.core.runner.attempts.resource_cache import ResourceCache
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation.forked_run import ForkedRun
from leyden.core.runner.user_code.input_function import check_input_function
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.user_code.reward import check_reward_function
from leyden.core.runner.workers.orphaned_attempts import OrphanedAttempts
from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.spans.export import Recorder

if TYPE_CHECKING:
    from leyden.core.runner.isolation.fork_server import ForkServer

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0
"""Seconds between claims while the store cannot be reached."""
WARM_SECONDS = 10.0
"""Longest time for which the first attempts run at low concurrency, where each attempt has a process of its own."""
LOOK_SECONDS = 0.2


class Runner:
    """Runner: runs queued rollouts of the store, up to `config.concurrency` attempts at once, each with its own agent.

    `recorder` buffers spans that are not stored yet. The runner flushes it before it marks an attempt as ended. With
    `fork_server`, each attempt runs in a forked process, and the recorder receives the spans of that process.

    Raises RewardError when the configured reward function cannot be called with a task and a result. Raises UsageError
    when the input function cannot be called with a task.
    """

    def __init__(
        self,
        store: LightningStore,
        source: AgentSource,
        *,
        config: RunnerConfig,
        recorder: Recorder | None = None,
        fork_server: "ForkServer | None" = None,
    ) -> None:
        if config.reward is not None:
            check_reward_function(config.reward)
        if config.input is not None:
            check_input_function(config.input)
        self.store, self.source, self.config = store, source, config
        self.loaded = LoadedAgent(
            source=source,
            reward=config.reward,
            reward_weights=config.reward_weights,
            input=config.input,
            hooks=config.hooks,
        )
        self._recorder, self._fork_server = recorder, fork_server
        self._began: float | None = None
        """`time.monotonic()` when the first attempt began."""
        self.resource_cache = ResourceCache(store)
        self._orphaned_attempts = OrphanedAttempts(store)
        self.loop_watch: LoopWatch | None = None
        """Measures how long agents have blocked the event loop. None where attempts run in processes of their own."""
        self.finished = 0
        """Number of attempts that have run to their end."""
        self._running: dict[asyncio.Task[None], AttemptRun] = {}
        self._draining = asyncio.Event()

    @property
    def running(self) -> int:
        """Number of attempts that run now."""
        return len(self._running)

    @property
    def forks(self) -> bool:
        """Whether each attempt runs in a process of its own."""
        return self._fork_server is not None

    def forked_run(self, rollout: AttemptedRollout, attempt: OpenAttempt, resources: Resources) -> ForkedRun:
        """Return a run of the agent in a forked process. Raises RuntimeError where this runner does not fork."""
        if self._fork_server is None:
            raise RuntimeError("this runner has no fork server")
        hooks_store = self.store.address if self.config.hooks and isinstance(self.store, HttpStore) else None
        return ForkedRun(
            rollout,
            attempt,
            server=self._fork_server,
            resources=resources,
            keep=self._recorder.take if self._recorder is not None else attempt.notes.append,
            worker_id=self.config.worker_id,
            store=hooks_store,
        )

    def process_lost(self, rollout: AttemptedRollout, failure: Failure) -> None:
        """Keep an attempt marked as lost after its process has died: mark it several times.

        A span that the store receives late would otherwise reopen the attempt.
        """
        attempt_id = rollout.attempt.attempt_id
        self._orphaned_attempts.sweep(failure, lambda found: found.attempt.attempt_id == attempt_id)

    async def flush(self) -> None:
        """Store the spans that the recorder has buffered."""
        if self._recorder is not None:
            await self._recorder.flush()

    def refused(self, attempt_id: str) -> tuple[int, str] | None:
        """Return how many spans of an attempt the store refused, and the reason. None: the store refused no span."""
        return None if self._recorder is None else self._recorder.refused(attempt_id)

    async def run_until(self, stopped: asyncio.Event, draining: asyncio.Event | None = None) -> None:
        """Claim and run rollouts until `stopped` is set. Then cancel running attempts and queue their rollouts again.

        Once `draining` is set, claim no further rollout, and return when those that run have ended.
        """
        self._draining = draining or self._draining
        stopping, drained = asyncio.create_task(stopped.wait()), asyncio.create_task(self._report_draining())
        heartbeats = asyncio.create_task(self._send_heartbeats())
        if self._fork_server is None:
            self.loop_watch = LoopWatch()
            self.loop_watch.start()
        try:
            while not stopped.is_set() and (self._running or not self._draining.is_set()):
                free = 0 if self._draining.is_set() else self._max_running() - len(self._running)
                if free <= 0:
                    timeout = None if self._is_warm() else LOOK_SECONDS
                    await asyncio.wait({*self._running, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    continue
                claimed = await self._claim(free, stopping)
                if stopped.is_set():
                    await self._requeue(claimed)
                else:
                    self._start(claimed)
        finally:
            stopping.cancel()
            drained.cancel()
            heartbeats.cancel()
            await self._stop()
            await self._orphaned_attempts.stop()
            if self.loop_watch is not None:
                self.loop_watch.stop()

    def _max_running(self) -> int:
        """Return how many attempts may run now: at most one per processor until the fork server is warm.

        A warm fork server has imported the modules that the first attempts needed, so later attempts find them loaded.
        """
        if self._is_warm():
            return self.config.concurrency
        return min(self.config.concurrency, os.cpu_count() or 1)

    def _is_warm(self) -> bool:
        if self._fork_server is None or self._fork_server.warm.is_set():
            return True
        if self._running and self._began is None:
            self._began = time.monotonic()
        return self._began is not None and time.monotonic() - self._began > WARM_SECONDS

    # --- Claims

    async def _claim(self, free: int, stopping: asyncio.Task[bool]) -> list[AttemptedRollout]:
        """Wait for work. A claim in flight is never cancelled, because the store may already have granted it."""
        pause = 0.1
        while not stopping.done() and not self._draining.is_set():
            try:
                return await self.store.dequeue_many_rollouts(
                    limit=free, worker_id=self.config.worker_id, timeout=self.config.poll_seconds
                )
            except Exception as error:
                logger.warning("no rollout can be claimed, trying again in %.1f s: %r", pause, error)
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
            # The store did not accept the final status. Once it works again, it will mark the attempt unresponsive.
            line = "the status of the attempt of rollout %s cannot be stored: %s"
            logger.error(line, run.rollout.rollout_id, task.exception())

    async def _stop(self) -> None:
        running = dict(self._running)
        for task, run in running.items():
            if not run.agent_is_done:
                task.cancel()
        if running:
            await asyncio.wait(running)
        for run in running.values():
            try:
                await run.explain_timeout()
            except StoreError as error:
                logger.info(
                    "rollout %s: the reason for its timeout could not be stored: %s", run.rollout.rollout_id, error
                )
        await self._requeue([run.rollout for task, run in running.items() if task.cancelled()])

    async def _requeue(self, rollouts: list[AttemptedRollout]) -> None:
        """Requeue rollouts that were claimed but not finished. A stop is no failure and uses up no attempt."""
        for rollout in rollouts:
            try:
                current = await self.store.get_rollout_by_id(rollout.rollout_id)
                if _is_ours(current, rollout):
                    await self.store.update_rollout(rollout.rollout_id, status="requeuing")
            except Exception as error:
                logger.warning("rollout %s could not be requeued: %r", rollout.rollout_id, error)

    # --- Heartbeats

    async def _send_heartbeats(self) -> None:
        """Send heartbeats for as long as attempts run. Abandon the attempts that the store has closed."""
        while True:
            try:
                await self._beat_all()
            except Exception as error:
                logger.warning("heartbeat failed: %r", error)
            await asyncio.sleep(self.config.heartbeat_seconds)

    async def _update_worker(self) -> None:
        stats: dict[str, Any] = {"running": len(self._running), "concurrency": self.config.concurrency}
        if self._draining.is_set():
            stats["draining"] = True
        if self.config.isolation:
            stats["isolation"] = self.config.isolation
        await self.store.update_worker(self.config.worker_id, heartbeat_stats=stats)

    async def _report_draining(self) -> None:
        """Report at once that no further rollout is claimed, so that others do not count on this worker."""
        await self._draining.wait()
        try:
            await self._update_worker()
        except Exception as error:
            logger.warning("heartbeat failed: %r", error)

    async def _beat_all(self) -> None:
        await self._update_worker()
        runs = {run.rollout.rollout_id: (task, run) for task, run in self._running.items()}
        if not runs:
            return
        found = await self.store.query_rollouts(rollout_id_in=list(runs))
        await asyncio.gather(*(self._beat_for(*runs[rollout.rollout_id], rollout) for rollout in found))

    async def _beat_for(self, task: asyncio.Task[None], run: AttemptRun, found: Rollout) -> None:
        if task.done() or run.agent_is_done:
            return
        if not _is_ours(found, run.rollout):
            why = f"the rollout is {found.status}, and this is no longer its current attempt"
            await run.abandon(Failure(kind="cancelled", type="Cancelled", message=why))
            return
        ids = found.rollout_id, run.rollout.attempt.attempt_id
        try:
            await self.store.update_attempt(*ids, last_heartbeat_time=time.time())
        except StoreError as error:
            logger.info("the heartbeat of attempt %s failed: %s", ids[1], error)


def _is_ours(found: Rollout | None, claimed: AttemptedRollout) -> bool:
    """Return whether the store still waits for the attempt that `claimed` names."""
    if not isinstance(found, AttemptedRollout) or found.status == "cancelled":
        return False
    return found.attempt.attempt_id == claimed.attempt.attempt_id and found.attempt.status not in FINISHED_ATTEMPT
