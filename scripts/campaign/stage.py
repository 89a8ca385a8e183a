"""Brings a campaign up and through: store, engine, gateway, proxy, weight updates and worker processes.

Gateway and engines run in this process, every agent in another.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from campaign.agents import Outcome
from campaign.evidence import Evidence
from campaign.plan import RolloutPlan
from campaign.proxy import CuttingProxy
from campaign.versions import Versions
from campaign.worker import Began, Done, Message, Orders, Ready, Way, Work
from leyden.core.data.identity import mint
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.route import POLICY
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trainer.serving.serving import embedded_policy

SCRIPTS = Path(__file__).parents[1]
SAMPLING = Sampling(temperature=0.9)
"""The policy's while it is trained: not the raw distribution, so that taking one for the other shows."""
LONGEST_LINE = 1 << 26
WAITS_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """One worker process."""

    way: Way
    at_once: int
    alone: bool = False
    """Whether it stands for a third of the rollouts by itself, rather than as one of several processes."""


def crews(at_once: int, processes: int) -> list[Crew]:
    """Divide so many rollouts at once: a third each as tasks, as threads, and in so many further processes."""
    third = at_once // 3
    shares = [third // processes + (n < third % processes) for n in range(processes)]
    ways: tuple[Way, Way] = ("tasks", "threads")
    further = [Crew(way=ways[n % 2], at_once=share) for n, share in enumerate(shares) if share]
    return [
        Crew(way="tasks", at_once=at_once - 2 * third, alone=True),
        Crew(way="threads", at_once=third, alone=True),
        *further,
    ]


class Campaign:
    """One campaign, while it runs."""

    def __init__(
        self,
        plans: list[RolloutPlan],
        policies: Mapping[str, Path],
        *,
        updates: int,
        on_call: Callable[[], None],
    ) -> None:
        self._plans, self._policies, self._on_call = plans, policies, on_call
        self._versions = {name: Versions(folder) for name, folder in policies.items()}
        self._every = max(1, sum(1 for plan in plans for _ in plan.calls()) // (updates + 1))
        self._log: dict[str, list[EngineRecord]] = {name: [] for name in policies}
        self._engines: dict[str, EmbeddedEngine] = {}
        self._outcomes: list[Outcome] = []
        self._open: set[int] = set()
        self._rollouts: dict[int, AttemptedRollout] = {}
        self._update = asyncio.Event()
        self._seen = Counter[str]()

    async def run(self, folder: Path, teams: list[Crew]) -> Evidence:
        """Run it, with its store in `folder`."""
        async with AsyncExitStack() as closing:
            served = {name: await closing.enter_async_context(self._serve(name)) for name in self._policies}
            self._store: LightningStore = await open_store(f"sqlite:///{folder / 'store.db'}")
            closing.push_async_callback(self._store.close)
            async with (
                open_gateway(self._store, served[POLICY], others=served) as (self._address, _),
                _proxy(self._address) as proxy,
            ):
                await self._send_out(teams, await proxy.start())
                self._seen.update({f"connection cut: {fault}": count for fault, count in proxy.cuts.items()})
            return await self._evidence()

    @asynccontextmanager
    async def _serve(self, name: str) -> AsyncGenerator[ServedPolicy]:
        on_finish = partial(self._drew, name)
        source, config = str(self._policies[name]), EmbeddedConfig(threads=1)
        async with embedded_policy(source, config=config, on_finish=on_finish) as policy:
            assert isinstance(policy.engine, EmbeddedEngine)
            self._engines[name] = policy.engine
            yield replace(policy, name=name, sampling=SAMPLING)

    async def _send_out(self, teams: list[Crew], proxy_url: str) -> None:
        updating = asyncio.create_task(self._publish())
        workers = [await _worker() for _ in teams]
        try:
            async with aiohttp.ClientSession() as self._session:
                await asyncio.gather(*map(_ready, workers))
                seats = [n for n, team in enumerate(teams) for _ in range(team.at_once)]
                work: list[list[Work]] = [[] for _ in teams]
                for plan in self._plans:
                    work[seats[plan.number % len(seats)]].append(await self._work(plan, proxy_url))
                await asyncio.gather(*map(self._follow, workers, teams, work))
        finally:
            updating.cancel()
            await asyncio.wait({updating})
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
        if not updating.cancelled():
            updating.result()

    # --- Workers

    async def _work(self, plan: RolloutPlan, proxy_url: str) -> Work:
        rollout = await self._store.start_rollout({"number": plan.number}, mode=plan.mode)
        self._rollouts[plan.number] = rollout
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        return Work(
            plan=plan,
            rollout_id=ids[0],
            attempt_id=ids[1],
            token=mint(self._address.key, *ids),
            gateway_url=proxy_url if plan.cut else self._address.url,
        )

    async def _follow(self, worker: asyncio.subprocess.Process, team: Crew, work: list[Work]) -> None:
        """Send a worker its orders and read its messages until it ends."""
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(msgspec.json.encode(Orders(at_once=team.at_once, way=team.way, work=work)) + b"\n")
        worker.stdin.close()
        kind = team.way if team.alone else "processes"
        tokens = {one.plan.number: one.token for one in work}
        async for line in worker.stdout:
            message: Message = msgspec.json.decode(line, type=Message)
            match message:
                case Began(rollout=number):
                    self._open.add(number)
                    self._seen["most rollouts at once"] = max(self._seen["most rollouts at once"], len(self._open))
                case Outcome() as outcome:
                    self._outcomes.append(outcome)
                    self._seen[f"calls from {kind}"] += 1
                    self._on_call()
                case Done(rollout=number):
                    self._open.discard(number)
                    await self._close(number, tokens[number])
                case Ready():
                    raise RuntimeError("a worker was ready twice")
        if await worker.wait():
            raise RuntimeError(f"a worker ended with code {worker.returncode}; its error is above")

    async def _close(self, number: int, token: str) -> None:
        """End a rollout, and call once more in its name: that must be refused."""
        ids = self._rollouts[number].rollout_id, self._rollouts[number].attempt.attempt_id
        await self._store.update_attempt(*ids, status="succeeded")
        body = {"model": "any", "messages": [{"role": "user", "content": "too late"}]}
        url = f"{self._address.url}/a/{token}/v1/chat/completions"
        async with self._session.post(url, json=body) as answer:
            self._seen[f"late calls answered with {answer.status}"] += 1

    # --- The engine

    def _drew(self, policy: str, record: EngineRecord) -> None:
        self._log[policy].append(record)
        in_flight = sum(engine.in_flight for engine in self._engines.values())
        self._seen["most engine calls at once"] = max(self._seen["most engine calls at once"], in_flight)
        if sum(map(len, self._log.values())) % self._every == 0:
            self._update.set()

    async def _publish(self) -> None:
        """Publish a version of every policy whenever it is time."""
        while True:
            await self._update.wait()
            self._update.clear()
            for name, engine in self._engines.items():
                version = engine.version + 1
                weights = await asyncio.to_thread(self._versions[name].weights, version)
                await engine.update_weights(weights, version)
                self._seen[f"weight updates of {name}"] += 1

    async def _evidence(self) -> Evidence:
        """Read the store, now that the gateway has ended and nothing more can come."""
        stored = await self._store.query_rollouts()
        numbers = {rollout.rollout_id: number for number, rollout in self._rollouts.items()}
        rollouts = {numbers[one.rollout_id]: one for one in stored if isinstance(one, AttemptedRollout)}
        spans = {n: (await self._store.query_spans(one.rollout_id)).items for n, one in rollouts.items()}
        return Evidence(
            policies=self._policies,
            plans=self._plans,
            outcomes=self._outcomes,
            log=self._log,
            rollouts=rollouts,
            spans=spans,
            seen=self._seen,
        )


@asynccontextmanager
async def _proxy(address: RunAddress) -> AsyncGenerator[CuttingProxy]:
    proxy = CuttingProxy(address.url)
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _worker() -> asyncio.subprocess.Process:
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "campaign.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


async def _ready(worker: asyncio.subprocess.Process) -> None:
    assert worker.stdout is not None
    line = await asyncio.wait_for(worker.stdout.readline(), WAITS_SECONDS)
    if not line or not isinstance(msgspec.json.decode(line, type=Message), Ready):
        raise RuntimeError("a worker did not get ready; its error is above")
