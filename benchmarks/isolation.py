"""What a process for each rollout costs, beside rollouts of the same agent that share one process, in one run.

    python benchmarks/isolation.py --json isolation.json

The agents of `scripts/isolation/agents` answer questions of a scripted model that takes no time, through a real worker,
gateway and store, 16 rollouts at once. For each: rollouts a second; CPU milliseconds of the agents' processes for a
rollout; milliseconds from the claim to the agent's first line; MiB that a rollout's process has for itself at its end.
Agents that fail when they are shared have no `shared` line. The ways take turns; medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))

from isolation_campaign import AGENTS, KEY, KINDS, TOKEN, served  # noqa: E402  (the campaign's own stage)
from leyden.core.data import semconv  # noqa: E402
from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig  # noqa: E402
from leyden.core.runner.workers.pool import WorkerPool  # noqa: E402
from leyden.core.runner.workers.spec import WorkerSpec  # noqa: E402

SHAREABLE = ("graph", "plain", "session")
"""Agents that run, if wrongly, when they are shared."""


async def measure(kind: str, isolation: Any, rollouts: int) -> dict[str, float]:
    """One worker, `rollouts` rollouts after as many to warm up."""
    async with served(0.0) as (store, url):
        spec = WorkerSpec(
            agent=f"{AGENTS / kind}.py:ask",
            reward=f"{HERE / 'isolation_memory.py'}:private_mib",
            store_url=f"{url}/store",
            store_token=TOKEN,
            gateway_url=url,
            key=KEY.hex(),
            concurrency=16,
            isolation=isolation,
        )
        pool = WorkerPool(spec, 1)
        await pool.start()
        try:
            await _run(store, "warm", rollouts // 2)
            began, cpu = time.perf_counter(), _worker_cpu()
            ids = await _run(store, "r", rollouts)
            seconds, cpu = time.perf_counter() - began, _worker_cpu() - cpu
        finally:
            await pool.stop()
        starts, memory = await _read(store, ids)
    return {
        "rollouts_per_s": rollouts / seconds,
        "cpu_ms": 1000 * cpu / rollouts,
        "start_ms": 1000 * statistics.median(starts),
        "private_mib": statistics.median(memory),
    }


async def _run(store: Any, name: str, count: int) -> list[str]:
    config = RolloutConfig(timeout_seconds=120.0)
    tasks = [
        EnqueueRollout(rollout_id=f"{name}-{n}", input={"question": f"What is {n}?"}, mode="test", config=config)
        for n in range(count)
    ]
    await store.enqueue_many_rollouts(tasks)
    ids = [task.rollout_id or "" for task in tasks]
    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=600.0)
    failed = [rollout.attempt.metadata for rollout in ended if rollout.status != "succeeded"]
    if failed or len(ended) < count:
        raise RuntimeError(f"{len(failed)} of {count} rollouts failed: {failed[:1]}")
    return ids


async def _read(store: Any, ids: list[str]) -> tuple[list[float], list[float]]:
    starts: list[float] = []
    memory: list[float] = []
    for rollout_id in ids:
        rollout = await store.get_rollout_by_id(rollout_id)
        assert isinstance(rollout, AttemptedRollout)
        for span in (await store.query_spans(rollout_id)).items:
            if span.name == semconv.RESULT:
                starts.append(span.start_time - rollout.attempt.start_time)
            elif span.name == semconv.REWARD:
                memory.append(float(span.attributes[semconv.REWARD_VALUE]))
    return starts, memory


def _worker_cpu() -> float:
    """CPU seconds of every process below this one, those that have ended and were waited for among them."""
    ticks = 0
    parents: dict[int, int] = {}
    times: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            times[int(entry)] = sum(map(int, fields[11:15]))
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        ticks += times[pid] if above == os.getpid() and pid != os.getpid() else 0
    return ticks / os.sysconf("SC_CLK_TCK")


async def main(arguments: list[str]) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    kinds = given.kind or list(KINDS)
    ways = [(kind, way) for kind in kinds for way in ("shared", "process") if way == "process" or kind in SHAREABLE]
    found: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way in ways:
            found[way].append(await measure(*way, given.rollouts))
    rows = [
        {
            "agent": kind,
            "isolation": way,
            **{name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
        }
        for (kind, way), rounds in found.items()
    ]
    print(f"{'agent':8} {'isolation':9} {'rollouts/s':>10} {'CPU ms':>8} {'start ms':>9} {'own MiB':>8}")
    for row in rows:
        own = f"{row['private_mib']:8.1f}" if row["isolation"] == "process" else "       -"
        print(
            f"{row['agent']:8} {row['isolation']:9} {row['rollouts_per_s']:10.1f} {row['cpu_ms']:8.1f} "
            f"{row['start_ms']:9.1f} {own}"
        )
    if given.json:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        given.json.write_text(json.dumps({"rounds": given.rounds, "largest_process_mib": peak, "rows": rows}, indent=2))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
