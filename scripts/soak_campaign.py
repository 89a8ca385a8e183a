"""So many rollouts through one server: does its memory stay, and are queries as quick at the end as at the start?

One process has the store, the gateway with its usual limits, and a scripted engine that answers at once, as the process
of a run has. Worker processes of this machine run an agent of two model calls. The store is a SQLite file, or any other
by its URI. While the rollouts run, a reader repeats the queries that people and the console make, and notes how long
each took. Nothing is deleted meanwhile. The exit code is 1 when a rollout is not accounted for or memory grows.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from kills.showing import Findings, show
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig, RolloutStatus
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.trainer.agents.local import AgentPlan, CheckAgents, worker_agents
from leyden.core.trainer.event_loop import run_loop
from leyden.core.trainer.serving.address import open_gateway
from scale.accounts import Accounts, read_accounts, unaccounted
from scale.watching import Look, growing, look

AGENT = Path(__file__).parent / "scale/agent.py"
CONFIG = RolloutConfig(unresponsive_seconds=600.0, max_attempts=2, retry_condition=("unresponsive",))
BATCH = 500
"""Rollouts that are queued in one call, as a step of a run queues its own."""
UNFINISHED: tuple[RolloutStatus, ...] = ("queuing", "preparing", "running", "requeuing")
STALLED_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """How much."""

    rollouts: int = 100_000
    workers: int = 2
    concurrency: int = 32
    look_every: float = 15.0
    store: str = ""
    """URI of an empty store; empty: a SQLite file that is not kept."""


@dataclass(slots=True)
class Seen:
    """What was noted on the way."""

    begun: set[str] = field(default_factory=set[str])
    looks: dict[str, list[Look]] = field(default_factory=dict[str, list[Look]])
    queries: dict[str, list[tuple[int, float]]] = field(default_factory=dict[str, list[tuple[int, float]]])
    """Of each query: rollouts that had finished, and milliseconds that it took."""
    finished: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Seconds since the start, and rollouts that had finished by then."""


class SoakCampaign:
    """One campaign in one folder."""

    def __init__(self, soak: Soak, folder: Path) -> None:
        self._soak, self._folder = soak, folder
        self.seen = Seen()
        codec = ByteCodec()
        ids = codec.answer("one two three")
        self._engine = ScriptedEngine(lambda request: ScriptedAnswer(ids=ids))
        self._policy = ServedPolicy(name="policy", engine=self._engine, codec=codec)

    async def work(self, show_finished: Callable[[int], object]) -> Findings:
        """Queue the rollouts as workers finish them, and check what the store holds at the end."""
        soak = self._soak
        store = await open_store(soak.store or f"sqlite:///{self._folder / 'store.db'}")
        plan = AgentPlan(
            agent=f"{AGENT}:agent",
            workers=soak.workers,
            concurrency=soak.concurrency,
            isolation="shared",
            log_file=str(self._folder / "agents.log"),
        )
        try:
            async with open_gateway(store, self._policy) as (address, _), worker_agents(plan)(address) as check:
                began = time.monotonic()
                await self._keep_busy(store, check, show_finished, began)
                seconds = time.monotonic() - began
            accounts = await read_accounts(store, self.seen.begun)
        finally:
            await store.close()
        return self._findings(accounts, seconds)

    async def _keep_busy(
        self, store: LightningStore, check: CheckAgents, show_finished: Callable[[int], object], began: float
    ) -> None:
        seen, wanted, looked, moved = self.seen, self._soak.rollouts, 0.0, (0, began)
        while True:
            waiting = (await store.query_rollouts(status_in=UNFINISHED, limit=0)).total
            if len(seen.begun) < wanted and waiting < 2 * BATCH:
                await self._begin(store, min(BATCH, wanted - len(seen.begun)))
            now = time.monotonic()
            finished = len(seen.begun) - (await store.query_rollouts(status_in=UNFINISHED, limit=0)).total
            show_finished(finished)
            if finished > moved[0]:
                moved = (finished, now)
            elif now - moved[1] > STALLED_SECONDS:
                raise SystemExit(f"no rollout has finished for {STALLED_SECONDS:.0f} s: {finished} of {wanted} have")
            if now - began >= looked or finished == wanted:
                looked += self._soak.look_every
                seen.finished.append((now - began, finished))
                await self._look(now - began)
                await self._query(store, finished)
                await check()
            if finished == wanted:
                return
            self._engine.log.clear()  # a script's notes would grow for ever
            self._engine.requests.clear()
            await asyncio.sleep(0.2)

    async def _begin(self, store: LightningStore, count: int) -> None:
        number = len(self.seen.begun)
        requests = [EnqueueRollout(input={"number": number + n}, mode="train", config=CONFIG) for n in range(count)]
        self.seen.begun |= {rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)}

    async def _look(self, seconds: float) -> None:
        for kind, one in (await asyncio.to_thread(look, os.getpid(), seconds)).items():
            self.seen.looks.setdefault(kind, []).append(one)

    async def _query(self, store: LightningStore, finished: int) -> None:
        """Time each query once; those of a rollout are of one that finished long ago."""
        first = min(self.seen.begun)
        queries: dict[str, Callable[[], Awaitable[object]]] = {
            "newest 50 rollouts": lambda: store.query_rollouts(sort_by="start_time", sort_order="desc", limit=50),
            "50 running rollouts": lambda: store.query_rollouts(status_in=["running"], limit=50),
            "spans of one rollout": lambda: store.query_spans(first),
            "attempts of one rollout": lambda: store.query_attempts(first),
            "statistics": store.statistics,
        }
        for name, query in queries.items():
            began = time.perf_counter()
            await query()
            self.seen.queries.setdefault(name, []).append((finished, 1000 * (time.perf_counter() - began)))

    def _findings(self, accounts: Accounts, seconds: float) -> Findings:
        begun = len(self.seen.begun)
        happened: dict[str, Any] = {
            "rollouts begun": begun,
            **{f"rollouts {status}": count for status, count in accounts.statuses.items()},
            **{f"rollouts that took {n} attempts": count for n, count in sorted(accounts.tries.items())},
            "calls recorded": accounts.calls,
            "rollouts a second": round(begun / seconds, 1),
            "rollouts a second, first fifth": round(self._rate(0.0, 0.2), 1),
            "rollouts a second, last fifth": round(self._rate(0.8, 1.0), 1),
        }
        return happened, {"accounts": unaccounted(accounts, begun), "growth": growing(self.seen.looks)}

    def _rate(self, start: float, end: float) -> float:
        """Rollouts a second between two shares of all rollouts."""
        total = self._soak.rollouts
        part = [(at, count) for at, count in self.seen.finished if start * total <= count <= end * total]
        if len(part) < 2:
            return 0.0
        (began, before), (ended, after) = part[0], part[-1]
        return (after - before) / max(ended - began, 1e-9)


def quickness(queries: dict[str, list[tuple[int, float]]]) -> dict[str, tuple[float, float]]:
    """Of each query: median milliseconds in the first and in the last fifth of its measurements."""
    found: dict[str, tuple[float, float]] = {}
    for name, measured in queries.items():
        fifth = max(1, len(measured) // 5)
        times = [milliseconds for _, milliseconds in measured]
        found[name] = (statistics.median(times[:fifth]), statistics.median(times[-fifth:]))
    return found


def run_soak(soak: Soak, show_finished: Callable[[int], object]) -> tuple[Findings, Seen]:
    """Run a campaign in a folder that is not kept."""
    with tempfile.TemporaryDirectory(prefix="leyden-soak-") as folder:
        campaign = SoakCampaign(soak, Path(folder))
        return run_loop(campaign.work(show_finished)), campaign.seen


def show_seen(console: Console, seen: Seen) -> None:
    """Print the memory of each kind of process at a few moments, and how long queries took."""
    table = Table(title="memory (MiB)")
    for column in ("rollouts finished", *seen.looks):
        table.add_column(column, justify="right")
    rows = len(seen.finished)
    for row in sorted({*range(0, rows, max(1, rows // 10)), rows - 1}):
        cells = [of[row] if row < len(of) else None for of in seen.looks.values()]
        table.add_row(f"{seen.finished[row][1]:,}", *(f"{one.mib:,.0f}" if one else "" for one in cells))
    console.print(table)
    table = Table(title="median milliseconds of a query")
    for column in ("query", "first fifth", "last fifth"):
        table.add_column(column, justify="left" if column == "query" else "right")
    for name, (first, last) in quickness(seen.queries).items():
        table.add_row(name, f"{first:.1f}", f"{last:.1f}")
    console.print(table)


def main() -> None:
    """Run, and show what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {"rollouts": int, "workers": int, "concurrency": int, "look_every": float, "store": str}
    for name, kind in kinds.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Soak(), name))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if name != "json"}
    console = Console()
    with Progress(
        *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        bar = progress.add_task("rollouts", total=options.rollouts)
        (happened, wrong), seen = run_soak(Soak(**given), lambda count: progress.update(bar, completed=count))
    show(console, f"{options.rollouts:,} rollouts through one server", happened, wrong)
    show_seen(console, seen)
    if options.json:
        looks = {kind: [asdict(one) for one in of] for kind, of in seen.looks.items()}
        found = {"happened": happened, "wrong": wrong, "looks": looks, "queries": seen.queries}
        given.pop("store")
        options.json.write_text(json.dumps({"soak": given, **found, "quickness": quickness(seen.queries)}, indent=1))
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
