"""`WorkerDemand`: how many workers a run has, and how many it wants, for its own pools and for other autoscalers."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from leyden.core.data.rollout import RolloutStatus
from leyden.core.errors import StoreError
from leyden.core.runner.workers.autoscaling import LOOK_SECONDS, Autoscaler, Load, ScalingRule
from leyden.core.store.base import LightningStore
from leyden.core.store.http.worker_presence import WorkerPresence

if TYPE_CHECKING:
    from leyden.core.trainer.config import RunConfig

MOST_WORKERS = 10_000
"""Upper bound of a run without `--max-workers` whose workers others start."""
_WAITING: tuple[RolloutStatus, ...] = ("queuing", "requeuing")
_CLAIMED: tuple[RolloutStatus, ...] = ("preparing", "running")

logger = logging.getLogger(__name__)


def scaling_rule(config: "RunConfig") -> ScalingRule:
    """Return the bounds of a run. Without `max_workers`, only the number of remote workers has none."""
    if config.max_workers is not None:
        return ScalingRule(least=config.workers, most=config.max_workers)
    return ScalingRule(least=config.workers, most=MOST_WORKERS if config.runners.where == "remote" else config.workers)


class WorkerDemand:
    """The workers that the run of `config` has and wants.

    The load is that of the run's own queue in `store`; `presence` are the workers that send heartbeats to the run.
    The rule is `scaling_rule` of the configuration by default.
    """

    def __init__(
        self, config: "RunConfig", store: LightningStore, presence: WorkerPresence, rule: ScalingRule | None = None
    ) -> None:
        self._autoscaler = Autoscaler(rule or scaling_rule(config))
        self._config, self._store, self._presence = config, store, presence
        self._queued = 0

    @property
    def wanted(self) -> int:
        """Number of workers that the run wants at the moment, of all machines together."""
        return self._autoscaler.wanted

    @property
    def present(self) -> int:
        """Number of workers that claim the run's rollouts, by their heartbeats."""
        return len(self._presence.claiming())

    @property
    def can_change(self) -> bool:
        """Whether the wanted number depends on the load."""
        return self._autoscaler.rule.least < self._autoscaler.rule.most

    async def wanted_now(self, size: int) -> int:
        """Return the wanted number for a pool that starts all workers of the run; `size` is its present number."""
        return self.wanted

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Context manager: looks at the load every second, if the wanted number depends on it."""
        if not self.can_change:
            yield
            return
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def measure(self) -> Iterable[Metric]:
        """Return the metrics of the run's workers and of its queue."""
        await self._count()
        return [
            self._metric("leyden_run_workers_wanted", "Workers that the run wants, of all machines.", self.wanted),
            self._metric("leyden_run_workers", "Workers that claim the run's rollouts.", self.present),
            self._metric("leyden_run_queue_length", "Rollouts of the run that wait for a worker.", self._queued),
        ]

    def _metric(self, name: str, about: str, value: float) -> Metric:
        metric = GaugeMetricFamily(name, about, labels=["run"])
        metric.add_metric([self._config.name], value)
        return metric

    async def _watch(self) -> None:
        while True:
            try:
                self._autoscaler.look(await self._load(), time.monotonic())
            except StoreError as error:  # the number stays as it is
                logger.info("the load of the run could not be read: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _load(self) -> Load:
        workers = self._presence.claiming()
        given = [worker.concurrency for worker in workers if worker.concurrency]
        concurrency = round(sum(given) / len(given)) if given else self._config.concurrency
        await self._count()
        running = await self._store.query_rollouts(status_in=_CLAIMED, limit=0)
        return Load(queued=self._queued, running=running.total, workers=len(workers), concurrency=concurrency)

    async def _count(self) -> None:
        self._queued = (await self._store.query_rollouts(status_in=_WAITING, limit=0)).total
