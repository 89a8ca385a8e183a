import asyncio
from typing import Any

import pytest

from leyden.core.runner.workers.autoscaling import ScalingRule
from leyden.core.store.http.worker_presence import WorkerPresence
from leyden.core.store.memory import MemoryStore
from leyden.core.store.queue_view import QueueView
from leyden.core.trainer.agents import worker_demand
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.worker_demand import MOST_WORKERS, WorkerDemand, scaling_rule
from leyden.core.trainer.config import RunConfig


def config(**changes: Any) -> RunConfig:
    return RunConfig(name="train", policy="policy", **changes)


REMOTE = RunnerPlacement(where="remote")


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (config(), (1, 1)),
        (config(workers=4), (4, 4)),
        (config(workers=2, max_workers=8), (2, 8)),
        (config(runners=REMOTE), (1, MOST_WORKERS)),
        (config(runners=REMOTE, workers=3, max_workers=20), (3, 20)),
    ],
)
def test_the_bounds_are_those_of_the_run(given: RunConfig, bounds: tuple[int, int]) -> None:
    rule = scaling_rule(given)
    assert (rule.least, rule.most) == bounds


async def numbers(demand: WorkerDemand) -> dict[str, tuple[dict[str, str], float]]:
    families = await demand.measure()
    return {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}


async def test_the_figures_of_one_run_name_the_run_and_count_its_own_queue() -> None:
    store, presence = MemoryStore(), WorkerPresence()
    own, other = QueueView(store, "train"), QueueView(store, "other")
    for number in range(3):
        await own.enqueue_rollout(number, rollout_id=f"own-{number}")
        await other.enqueue_rollout(number, rollout_id=f"other-{number}")
    await own.dequeue_rollout(worker_id="w")
    presence.heartbeat("w", {"concurrency": 2})
    assert await numbers(WorkerDemand(config(workers=2), own, presence)) == {
        "leyden_run_workers_wanted": ({"run": "train"}, 2.0),
        "leyden_run_workers": ({"run": "train"}, 1.0),
        "leyden_run_queue_length": ({"run": "train"}, 2.0),
    }
    await store.close()


async def look(demand: WorkerDemand) -> int:
    """The wanted number after the demand was looked at for a while."""
    async with demand.watched():
        await asyncio.sleep(0.3)
    return demand.wanted


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_demand, "LOOK_SECONDS", 0.02)


@pytest.mark.usefixtures("quick_looks")
async def test_the_capacity_of_workers_on_other_machines_is_their_own() -> None:
    store, presence = MemoryStore(), WorkerPresence()
    for number in range(24):
        await store.enqueue_rollout(number)
    rule = ScalingRule(least=1, most=50, out_after=0.05, in_after=60.0)
    run = config(runners=REMOTE, concurrency=8)
    assert await look(WorkerDemand(run, store, presence, rule)) == 3  # nobody is there: 8 each, as the run has it
    await store.dequeue_many_rollouts(limit=4, worker_id="w")
    presence.heartbeat("w", {"concurrency": 4})
    assert await look(WorkerDemand(run, store, presence, rule)) == 6
    await store.close()


def test_a_run_whose_number_is_fixed_looks_at_nothing() -> None:
    assert not WorkerDemand(config(workers=3), MemoryStore(), WorkerPresence()).can_change
    assert WorkerDemand(config(workers=3, max_workers=4), MemoryStore(), WorkerPresence()).can_change
