"""Worker processes whose number follows the load of a run: real processes, a real server, quick windows."""

import asyncio
import functools
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from leyden.core.data.identity import mint
from leyden.core.data.rollout import AttemptedRollout, Rollout, RolloutConfig
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.workers import autoscaling
from leyden.core.runner.workers.autoscaling import ScalingRule
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access
from leyden.core.store.http.admission import RequestAdmission, ServerLimits
from leyden.core.store.http.metrics import StoreMetrics
from leyden.core.store.http.server import store_app
from leyden.core.testing.running import finished, patient_store
from leyden.core.trainer.agents import worker_demand
from leyden.core.trainer.agents.local import AgentPlan, CheckAgents, scaled, worker_spec
from leyden.core.trainer.agents.worker_demand import WorkerDemand
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.serving.address import RunAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.usefixtures("quick_workers")]

KEY, ACCESS = bytes(range(32)), Access("opens-the-store")
RULE = ScalingRule(least=1, most=3, out_after=0.5, in_after=1.5)

AGENT = """
import os, time
from pathlib import Path


def agent(task):
    folder = Path(task["folder"])
    with open(folder / f"ran-{task['number']}", "a") as file:
        file.write(f"{os.getpid()}\\n")
    until = time.monotonic() + 100
    while not (folder / task["until"]).exists() and time.monotonic() < until:
        time.sleep(0.05)
    return "done"
"""


@dataclass
class Run:
    """A run's own side of its workers."""

    folder: Path
    store: LightningStore
    address: RunAddress
    demand: WorkerDemand

    @asynccontextmanager
    async def pool(self, rule: ScalingRule = RULE) -> AsyncGenerator[tuple[WorkerPool, CheckAgents]]:
        plan = AgentPlan(
            agent=f"{self.folder / 'agent.py'}:agent",
            workers=rule.least,
            max_workers=None if rule.least == rule.most else rule.most,
            concurrency=2,
            log_file=str(self.folder / "agents.log"),
        )
        pool = WorkerPool(worker_spec(plan, self.address), plan.workers, most=plan.max_workers)
        await pool.start()
        try:
            async with scaled(pool, plan, self.address) as check:
                yield pool, check
        finally:
            await pool.stop()

    async def enqueue(self, count: int, until: str, config: RolloutConfig | None = None) -> list[str]:
        tasks = [{"folder": str(self.folder), "number": f"{until}-{number}", "until": until} for number in range(count)]
        return [(await self.store.enqueue_rollout(task, config=config)).rollout_id for task in tasks]

    def go(self, until: str) -> None:
        (self.folder / until).write_text("")

    async def ran(self, count: int) -> list[Path]:
        """The files of `count` tasks that have begun, each with the ids of the processes that ran it."""
        async with asyncio.timeout(60):
            while len(found := [path for path in self.folder.glob("ran-*") if path.read_text()]) < count:
                await asyncio.sleep(0.05)
        return found

    def runs(self) -> list[int]:
        """How often each task was run."""
        return [len(path.read_text().splitlines()) for path in self.folder.glob("ran-*")]


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Run]:
    monkeypatch.setattr(worker_demand, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(autoscaling, "LOOK_SECONDS", 0.05)
    (tmp_path / "agent.py").write_text(AGENT)
    store, metrics = patient_store(), StoreMetrics(RequestAdmission(ServerLimits()))
    stores = store_app(
        store,
        authorize=ACCESS.is_trainer,
        agents=ACCESS.holder,
        metrics=metrics,
        attempt_token=functools.partial(mint, KEY),
    )
    config = RunConfig(name="train", policy="policy", workers=RULE.least, max_workers=RULE.most, concurrency=2)
    demand = WorkerDemand(config, store, metrics.workers, RULE)
    server = GatewayServer(Gateway(store, None, KEY, mounts={"/store": stores}).app)
    url = await server.start()
    async with demand.watched():
        yield Run(tmp_path, store, RunAddress(url=url, token="opens-the-store", demand=demand), demand)
    await server.stop()
    await store.close()


async def becomes(pool: WorkerPool, size: int) -> None:
    """Wait until the pool has `size` processes, whatever they do."""
    async with asyncio.timeout(60):
        while not len(pool.worker_ids) == pool.size == size:
            await asyncio.sleep(0.05)


async def test_a_pool_grows_under_load_and_shrinks_after_it_and_runs_each_rollout_once(run: Run) -> None:
    ids = await run.enqueue(20, "first")
    async with run.pool() as (pool, check):
        assert pool.size == 1
        await becomes(pool, 3)
        run.go("first")
        ended = await finished(run.store, ids)
        await becomes(pool, 1)
        run.go("second")
        ended += await finished(run.store, await run.enqueue(3, "second"))
        await check()
    assert {rollout.status for rollout in ended} == {"succeeded"}
    assert len({rollout.attempt.worker_id for rollout in ended}) == 3
    assert [rollout.attempt.sequence_id for rollout in ended] == [1] * 23
    assert run.runs() == [1] * 23


async def test_a_worker_with_a_running_rollout_is_drained_and_claims_nothing_more(run: Run) -> None:
    ids = [each for number in range(6) for each in await run.enqueue(1, f"{number}")]
    async with run.pool(ScalingRule(least=3, most=3)) as (pool, _):
        workers = [rollout.attempt.worker_id for rollout in await claimed(run.store, 6)]
        await pool.resize(1)
        first = [workers.index(worker) for worker in {*workers}]  # one of the two rollouts of each worker ends
        for number in first:
            run.go(f"{number}")
        await finished(run.store, [ids[number] for number in first])
        late = await run.enqueue(4, "late")
        assert len(await claimed(run.store, 4)) == 4, "only the worker that is kept has a place again"
        await asyncio.sleep(1.5)
        waiting = await run.store.query_rollouts(rollout_id_in=late, status_in=["queuing"])
        assert (len(waiting), len(pool.worker_ids)) == (3, 3), (
            "workers that are being drained run on, and claim nothing"
        )
        for until in ("0", "1", "2", "3", "4", "5", "late"):
            run.go(until)
        ended = await finished(run.store, [*ids, *late])
        await becomes(pool, 1)
    assert {rollout.status for rollout in ended} == {"succeeded"}
    assert [rollout.attempt.worker_id for rollout in ended[:6]] == workers
    assert len({rollout.attempt.worker_id for rollout in ended[6:]}) == 1
    assert run.runs() == [1] * 10


async def test_a_worker_that_dies_while_it_is_drained_is_not_replaced_and_its_rollouts_run_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    retry = RolloutConfig(max_attempts=2, unresponsive_seconds=1000.0, retry_condition=("unresponsive",))
    ids = await run.enqueue(4, "first", retry)
    async with run.pool(ScalingRule(least=2, most=2)) as (pool, _):
        await claimed(run.store, 4)
        await pool.resize(0)
        assert pool.size == 0
        pids = {path.read_text().split()[0] for path in await run.ran(4)}
        os.kill(int(min(pids)), signal.SIGKILL)
        async with asyncio.timeout(60):
            while len(await waiting(run.store)) < 4:
                await asyncio.sleep(0.05)
        run.go("first")
        await becomes(pool, 0)
        await pool.resize(1)
        ended = await finished(run.store, ids)
    assert {rollout.status for rollout in ended} == {"succeeded"}
    # workers whose attempts share a process are stopped with it, and put their rollouts back
    assert [rollout.attempt.sequence_id for rollout in ended] == [2, 2, 2, 2]
    assert "was lost while it was being drained" in caplog.text


async def waiting(store: LightningStore) -> Sequence[Rollout]:
    return (await store.query_rollouts(status_in=["requeuing"])).items


async def claimed(store: LightningStore, count: int) -> list[AttemptedRollout]:
    async with asyncio.timeout(60):
        while len(found := await store.query_rollouts(status_in=["preparing", "running"])) < count:
            await asyncio.sleep(0.05)
    return [rollout for rollout in found if isinstance(rollout, AttemptedRollout)]
