"""Runners on Ray, with a real cluster of this machine. Long: the cluster alone takes half a minute to begin."""

import asyncio
import contextlib
import functools
import importlib.util
import os
import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.rollout import RolloutConfig
from leyden.core.errors import AgentNotFound, UsageError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.workers import ray_pool
from leyden.core.runner.workers.autoscaling import ScalingRule, follow
from leyden.core.runner.workers.ray_cluster import Cluster, ray_cluster
from leyden.core.runner.workers.ray_pool import NoActorInTime, RayPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.access import Access, new_machine
from leyden.core.store.http.admission import RequestAdmission, ServerLimits
from leyden.core.store.http.metrics import StoreMetrics
from leyden.core.store.http.server import store_app
from leyden.core.store.http.worker_presence import WorkerPresence
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import finished
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.agents.worker_demand import WorkerDemand
from leyden.core.trainer.config import RunConfig

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.keeps("descriptor", because="Ray's driver leaves those of its event loops and of its log open"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

KEY, ACCESS = bytes(range(32)), Access("opens-the-store")

AGENTS = """
import os, time
from pathlib import Path

import httpx

CALL = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "hello"}]}
client = httpx.AsyncClient(base_url="https://api.openai.com/v1")


async def asks(task):
    print("asked in", os.getpid())
    answer = await client.post("/chat/completions", json=CALL)
    return answer.json()["choices"][0]["message"]["content"]


def runs_until(task):
    folder = Path(task["folder"])
    with open(folder / f"ran-{task['number']}", "a") as file:
        file.write("ran\\n")
    until = time.monotonic() + 200
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return "done"


def waits_once(task):
    marker = Path(task["marker"])
    if not marker.exists():
        marker.write_text(f"{os.getppid()} {os.getpid()}.")
        time.sleep(100)
    return "survived"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of our own, on an event loop of its own; it has six processors to give away."""
    up, down, found = threading.Event(), threading.Event(), list[Cluster | BaseException]()

    async def keep() -> None:
        async with ray_cluster(None, 6) as running:
            found.append(running)
            up.set()
            await asyncio.to_thread(down.wait)

    def work() -> None:
        try:
            asyncio.run(keep())
        except BaseException as error:
            found.append(error)
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    up.wait()
    assert isinstance(found[0], Cluster), found
    assert found[0].is_ours
    yield found[0]
    down.set()
    thread.join()
    assert not left_of_ray()


def left_of_ray() -> list[str]:
    """Processes of Ray below this one."""
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"leyden-ray-{os.getpid()}-" in line]


class Site:
    """A store and a gateway, up, and a way to start runners on Ray beside them."""

    def __init__(self, folder: Path, url: str, store: MemoryStore, presence: WorkerPresence) -> None:
        self.url, self.store, self.presence = url, store, presence
        self.agents, self.log = folder / "agents.py", folder / "agents.log"
        self.agents.write_text(AGENTS)

    def pool(
        self, cluster: Cluster, agent: str, size: int, hosts: int, cpus: float = 1.0, most: int | None = None
    ) -> RayPool:
        spec = WorkerSpec(
            agent=f"{self.agents}:{agent}",
            store_url=f"{self.url}/store",
            store_token=new_machine(ACCESS),
            gateway_url=self.url,
            concurrency=4,
            log_file=str(self.log),
        )
        return RayPool(cluster, spec, size, hosts=hosts, most=most, cpus=cpus, here_only=True)

    @contextlib.asynccontextmanager
    async def runners(self, *given: Any) -> AsyncGenerator[RayPool]:
        pool = self.pool(*given)
        await pool.start()
        try:
            yield pool
        finally:
            await pool.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    store, codec, metrics = MemoryStore(), ByteCodec(), StoreMetrics(RequestAdmission(ServerLimits()))
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    stores = store_app(
        store,
        authorize=ACCESS.is_trainer,
        agents=ACCESS.holder,
        metrics=metrics,
        attempt_token=functools.partial(mint, KEY),
    )
    policy = ServedPolicy(name="policy", engine=engine, codec=codec)
    server = GatewayServer(Gateway(store, policy, KEY, mounts={"/store": stores}).app)
    yield Site(tmp_path, await server.start(), store, metrics.workers)
    await server.stop()
    await store.close()


async def test_rollouts_run_in_workers_of_actors_and_what_they_print_comes_back(cluster: Cluster, site: Site) -> None:
    ids = [(await site.store.enqueue_rollout(n, mode="train")).rollout_id for n in range(24)]
    async with site.runners(cluster, "asks", 3, 2) as pool:
        workers = set(await pool.workers())
        ended = await finished(site.store, ids)
        await pool.check()
    assert len(workers) == 3
    assert len({worker.rpartition("-")[0] for worker in workers}) == 2, "each actor has workers of its own"
    assert {rollout.status for rollout in ended} == {"succeeded"}
    assert {rollout.attempt.worker_id for rollout in ended} <= workers
    for rollout in ended:
        spans = (await site.store.query_spans(rollout.rollout_id)).items
        assert sum(semconv.CALL_ID in span.attributes for span in spans) == 1
    assert site.log.read_text().count("asked in") == 24


async def host_and_worker(marker: Path) -> tuple[int, int]:
    while not (marker.exists() and marker.read_text().endswith(".")):
        await asyncio.sleep(0.02)
    host, worker = marker.read_text().rstrip(".").split()
    return int(host), int(worker)


async def test_a_killed_actor_is_replaced_and_its_attempts_are_given_up_at_once(
    cluster: Cluster, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "marker"
    config = RolloutConfig(max_attempts=2, unresponsive_seconds=1000.0, retry_condition=("unresponsive",))
    rollout = await site.store.enqueue_rollout({"marker": str(marker)}, config=config)
    async with site.runners(cluster, "waits_once", 1, 1) as pool:
        before = await pool.workers()
        host, worker = await asyncio.wait_for(host_and_worker(marker), 20)
        os.kill(host, signal.SIGKILL)
        async with asyncio.timeout(60):
            while not (ended := await site.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=5)):
                await pool.check()
        assert ended[0].status == "succeeded"
        assert await pool.workers() != before
    assert not alive(worker), "a worker outlives the actor that hosted it"
    first, *claimed_last, second = await site.store.query_attempts(rollout.rollout_id)
    assert (first.status, second.status) == ("unresponsive", "succeeded")
    # The orphaned worker's last claim may have been granted after the attempt was given up; it was put back.
    assert all(attempt.worker_id == before[0] for attempt in claimed_last), claimed_last
    assert (first.worker_id, first.metadata["error"]["type"]) == (before[0], "WorkerDied")
    assert "is replaced" in caplog.text


async def test_the_number_of_actors_follows_the_load_and_no_rollout_is_lost_or_run_twice(
    cluster: Cluster, site: Site, tmp_path: Path
) -> None:
    config = RunConfig(name="train", policy="policy", workers=1, max_workers=4, concurrency=4)
    rule = ScalingRule(least=1, most=4, out_after=1.0, in_after=5.0)
    demand = WorkerDemand(config, site.store, site.presence, rule)
    retry = RolloutConfig(max_attempts=2, unresponsive_seconds=1000.0, retry_condition=("unresponsive",))
    tasks = [{"folder": str(tmp_path), "number": number} for number in range(20)]
    ids = [(await site.store.enqueue_rollout(task, config=retry)).rollout_id for task in tasks]
    async with demand.watched(), site.runners(cluster, "runs_until", 1, 1, 1.0, 4) as pool:
        following = asyncio.create_task(follow(pool, demand.wanted_now))
        await reaches(pool, 4)
        (tmp_path / "go").write_text("")
        ended = await finished(site.store, ids)
        await reaches(pool, 1)
        later = await site.store.enqueue_rollout({"folder": str(tmp_path), "number": 20})
        ended += await finished(site.store, [later.rollout_id])
        await pool.check()
        following.cancel()
    assert [(rollout.status, rollout.attempt.sequence_id) for rollout in ended] == [("succeeded", 1)] * 21
    assert len({(rollout.attempt.worker_id or "").rpartition("-")[0] for rollout in ended}) == 4, "actors with one each"
    assert [path.read_text() for path in tmp_path.glob("ran-*")] == ["ran\n"] * 21


async def reaches(pool: RayPool, size: int) -> None:
    """Wait until exactly `size` workers live."""
    async with asyncio.timeout(120):
        while not pool.size == len(await pool.workers()) == size:
            await asyncio.sleep(0.2)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_an_agent_that_is_not_there_is_the_users_to_mend(cluster: Cluster, site: Site) -> None:
    pool = site.pool(cluster, "askz", 2, 1)
    with pytest.raises(AgentNotFound, match="did you mean asks") as error:
        await pool.start()
    assert "\n" not in str(error.value)
    assert "/proc/" not in str(error.value)


async def test_a_run_that_the_nodes_cannot_reach_is_refused(cluster: Cluster, site: Site) -> None:
    site.url = "http://127.0.0.1:9"
    with pytest.raises(UsageError, match=r"cannot reach the run at http://127\.0\.0\.1:9: give --host, and"):
        await site.pool(cluster, "asks", 1, 1).start()


async def test_too_little_room_is_said(cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "SCHEDULING_SECONDS", 3.0)
    with pytest.raises(NoActorInTime, match="no node with 99 free CPUs for 1 workers"):
        await site.pool(cluster, "asks", 1, 1, 99.0).start()
