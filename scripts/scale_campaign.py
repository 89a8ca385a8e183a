"""A thousand agents at once, over Ray actors on this machine: does every rollout come to its end, and memory stay?

Real store (SQLite), real gateway with its usual limits before a scripted engine that takes its time, a Ray cluster of
its own, actors that host worker processes. So many rollouts are in flight at all times: more calls arrive than the
gateway answers at once, and the others wait there. The exit code is 1 when a rollout is not accounted for, memory
grows, or fewer agents ran at once than were asked for.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kills.showing import Findings, show
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.trainer.agents.local import AgentPlan, CheckAgents
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.ray import ray_agents
from leyden.core.trainer.event_loop import run_loop
from leyden.core.trainer.serving.address import open_gateway
from scale.accounts import Accounts, read_accounts, unaccounted
from scale.watching import Look, growing, look

AGENT = Path(__file__).parent / "scale/agent.py"
CONFIG = RolloutConfig(unresponsive_seconds=600.0, max_attempts=2, retry_condition=("unresponsive",))
AHEAD = 1.0
"""Rollouts that wait in the queue, as a share of those in flight: whoever is done finds the next one."""
FULL = 0.9
"""So large a share of the agents is at work whenever somebody looks: between two rollouts one is at none."""
FILL_SECONDS = 300.0
DRAIN_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much, for how long."""

    agents: int = 1000
    workers: int = 4
    actors: int = 2
    minutes: float = 10.0
    delay: float = 16.0
    """Seconds that the engine takes for a call, on average."""
    look_every: float = 15.0


@dataclass(slots=True)
class Seen:
    """What was noted on the way."""

    begun: set[str] = field(default_factory=set[str])
    looks: dict[str, list[Look]] = field(default_factory=dict[str, list[Look]])
    in_flight: list[int] = field(default_factory=list[int])
    """Rollouts that were claimed and not finished, every half second once as many had begun as should."""
    waiting: int = 0
    """The most calls that waited at the gateway."""
    answering: int = 0


class ScaleCampaign:
    """One campaign in one folder."""

    def __init__(self, scale: Scale, folder: Path) -> None:
        self._scale, self._folder = scale, folder
        self.seen = Seen()
        codec = ByteCodec()
        ids, draw = codec.answer("one two three"), random.Random(0)
        # No two answers take equally long, or all rollouts that begin together would end together.
        self._engine = ScriptedEngine(
            lambda request: ScriptedAnswer(ids=ids, delay=scale.delay * draw.uniform(0.5, 1.5))
        )
        self._policy = ServedPolicy(name="policy", engine=self._engine, codec=codec)

    async def work(self, told: Callable[[float], object]) -> Findings:
        """Keep the agents busy for as long as is asked, let them come to their end, and check."""
        scale = self._scale
        store = await open_store(f"sqlite:///{self._folder / 'store.db'}")
        plan = AgentPlan(
            agent=f"{AGENT}:agent",
            workers=scale.workers,
            concurrency=-(-scale.agents // scale.workers),
            log_file=str(self._folder / "agents.log"),
        )
        side = ray_agents(plan, RunnerPlacement(where="ray", ray_actors=scale.actors))
        try:
            async with open_gateway(store, self._policy) as (address, gateway), side(address) as check:
                began = time.monotonic()
                await self._keep_busy(store, gateway.admission, check, told)
                await self._drain(store, check)
                seconds = time.monotonic() - began
            accounts = await read_accounts(store, self.seen.begun)
        finally:
            await store.close()
        return self._findings(accounts, seconds)

    async def _keep_busy(
        self, store: LightningStore, gate: Any, check: CheckAgents, told: Callable[[float], object]
    ) -> None:
        scale, looked, started = self._scale, 0.0, time.monotonic()
        # The campaign's time begins once nearly all agents wait for an answer: one that was only claimed still starts
        # its process, and memory would grow by that.
        full_at: float | None = None
        while full_at is not None or time.monotonic() - started < FILL_SECONDS:
            seconds = 0.0 if full_at is None else time.monotonic() - full_at
            if seconds >= scale.minutes * 60:
                return
            waiting = (await store.statistics())["queue_length"]
            await self._begin(
                store, int(scale.agents * AHEAD) - waiting if self.seen.begun else int(scale.agents * (1 + AHEAD))
            )
            self.seen.waiting = max(self.seen.waiting, gate.waiting)
            self.seen.answering = max(self.seen.answering, gate.running)
            claimed = (await store.query_rollouts(status_in=["preparing", "running"], limit=0)).total
            if full_at is None and min(claimed, gate.running + gate.waiting) >= scale.agents * FULL:
                full_at = time.monotonic()
            if full_at is not None:
                self.seen.in_flight.append(claimed)
            self._engine.log.clear()  # a script's notes would grow for ever
            self._engine.requests.clear()
            if full_at is not None and seconds >= looked:
                looked += scale.look_every
                await self._look(seconds)
                await check()
            told(seconds)
            await asyncio.sleep(0.5)

    async def _begin(self, store: LightningStore, count: int) -> None:
        if count <= 0:
            return
        number = len(self.seen.begun)
        requests = [EnqueueRollout(input={"number": number + n}, mode="train", config=CONFIG) for n in range(count)]
        self.seen.begun |= {rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)}

    async def _look(self, seconds: float) -> None:
        for kind, one in (await asyncio.to_thread(look, os.getpid(), seconds)).items():
            self.seen.looks.setdefault(kind, []).append(one)

    async def _drain(self, store: LightningStore, check: CheckAgents) -> None:
        async with asyncio.timeout(DRAIN_SECONDS):
            while (
                await store.query_rollouts(status_in=["queuing", "preparing", "running", "requeuing"], limit=0)
            ).total:
                await check()
                await asyncio.sleep(1.0)

    def _findings(self, accounts: Accounts, seconds: float) -> Findings:
        seen, begun = self.seen, len(self.seen.begun)
        fewest = min(seen.in_flight, default=0)
        happened: dict[str, Any] = {
            "rollouts begun": begun,
            **{f"rollouts {status}": count for status, count in accounts.statuses.items()},
            **{f"rollouts that took {n} attempts": count for n, count in sorted(accounts.tries.items())},
            "calls recorded": accounts.calls,
            "rollouts a second": round(begun / seconds, 2),
            "in flight, at least and at most": f"{fewest} to {max(seen.in_flight, default=0)}",
            "calls answered at once, at most": seen.answering,
            "calls that waited at the gateway, at most": seen.waiting,
        }
        few = fewest < self._scale.agents * FULL
        wrong = [f"only {fewest} of {self._scale.agents} rollouts were in flight at once"] if few else []
        return happened, {"accounts": unaccounted(accounts, begun), "growth": growing(seen.looks), "scale": wrong}


def run_scale(scale: Scale, told: Callable[[float], object]) -> tuple[Findings, Seen]:
    """Run a campaign in a folder that is not kept."""
    with tempfile.TemporaryDirectory(prefix="leyden-scale-") as folder:
        campaign = ScaleCampaign(scale, Path(folder))
        return run_loop(campaign.work(told)), campaign.seen


def show_looks(console: Console, looks: dict[str, list[Look]]) -> None:
    """Print what each kind of process took, at a few moments."""
    table = Table(title="memory (MiB), most open files and threads of one process")
    for column in ("second", *looks):
        table.add_column(column, justify="right")
    rows = max((len(of) for of in looks.values()), default=0)
    for row in sorted({*range(0, rows, max(1, rows // 10)), rows - 1}):
        cells = [of[row] if row < len(of) else None for of in looks.values()]
        shown = [f"{one.mib:,.0f}  {one.files} f  {one.threads} t" if one else "" for one in cells]
        table.add_row(next(f"{one.seconds:.0f}" for one in cells if one), *shown)
    console.print(table)


def main() -> None:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {"agents": int, "workers": int, "actors": int, "minutes": float, "delay": float, "look_every": float}
    for name, kind in kinds.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Scale(), name))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if name != "json"}
    console = Console()
    with Progress(console=console) as progress:
        bar = progress.add_task("seconds", total=options.minutes * 60)
        (happened, wrong), seen = run_scale(Scale(**given), lambda seconds: progress.update(bar, completed=seconds))
    show(console, f"{options.agents} agents at once for {options.minutes:g} minutes", happened, wrong)
    show_looks(console, seen.looks)
    if options.json:
        looks = {kind: [asdict(one) for one in of] for kind, of in seen.looks.items()}
        options.json.write_text(
            json.dumps({"scale": given, "happened": happened, "wrong": wrong, "looks": looks}, indent=1)
        )
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
