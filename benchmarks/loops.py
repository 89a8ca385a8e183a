"""Rollouts a second by loop: in step, one batch ahead, asynchronous; with an agent at once and one that waits.

The agent is the calculator of the quickstart with its tiny policy. "Waits" puts a pause before each attempt, as a tool
or a service far away would, drawn with a long tail. The loops take turns, so that a busy machine slows each alike; the
ratio of medians is what to read. One machine computes answers and updates here: where nothing waits, there is little
to win.

    python benchmarks/loops.py --json loops.json
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from leyden.core import Hook

ROOT = Path(__file__).parents[1]
EXAMPLE = "examples/calculator_langgraph"
LOOPS = {
    "sync": (),
    "one_off": ("loop=one_off",),
    "async, 1": ("loop=async", "max_staleness=1"),
    "async, 2": ("loop=async",),
}
WAIT = "LEYDEN_BENCH_WAIT"
LONGEST = 5.0
"""A pause is at most so many times the mean."""
STEP_PHASES = ("rollouts", "update", "publish", "checkpoint")
"""They follow one another: their sum is the time from the first collected batch to the last checkpoint."""


class Waiting(Hook):
    """Puts a pause before each attempt, of as many seconds on average as the environment says."""

    async def on_trace_start(self, **given: Any) -> None:
        """Wait."""
        mean = float(os.environ[WAIT])
        drawn = random.Random(given["rollout"].rollout_id).expovariate(1 / mean) if mean else 0.0
        await asyncio.sleep(min(drawn, LONGEST * mean))


def train(loop: str, wait: float, steps: int, runs: Path, name: str) -> dict[str, float]:
    """Train once, and return the figures of it."""
    settings = [word for setting in LOOPS[loop] for word in ("--set", setting)]
    command = [
        *(sys.executable, "-m", "leyden.core.cli", "train", f"{EXAMPLE}/agent.py:agent"),
        *("--tasks", f"{EXAMPLE}/train.jsonl", "--reward", f"{EXAMPLE}/reward.py:score"),
        *("--policy", f"{EXAMPLE}/policy", "--learning-rate", "6e-4", "--steps", str(steps)),
        *("--hook", "benchmarks/loops.py:Waiting", "--tasks-per-step", "8", "--group-size", "8"),
        *("--runs", str(runs), "--name", name, "--quiet", "--no-check", *settings),
    ]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", WAIT: str(wait)})
    report = json.loads((runs / name / "report.json").read_text())
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(report["seconds_by_phase"].get(phase, 0.0) for phase in STEP_PHASES)
    spent = sum(line["seconds"] for line in lines)
    return {
        "rollouts_per_second": report["rollouts"] / seconds,
        "cpu_seconds_per_rollout": report["cpu_seconds"] / report["rollouts"],
        "trainer_idle": sum(line["seconds_trainer_idle"] for line in lines) / spent,
        "engine_idle": sum(line["seconds_engine_idle"] for line in lines) / spent,
        "staleness_mean": statistics.mean(line["staleness_mean"] for line in lines),
        "staleness_max": max(line["staleness_max"] for line in lines),
        "mixed_version_share": statistics.mean(line["mixed_version_share"] for line in lines),
    }


def measure(waits: list[float], steps: int, rounds: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Train in every loop in turn, `rounds` times, for each mean pause."""
    found = {f"{wait:g}": {loop: list[dict[str, float]]() for loop in LOOPS} for wait in waits}
    with tempfile.TemporaryDirectory() as runs:
        for turn in range(rounds):
            for wait in waits:
                for number, loop in enumerate(LOOPS):
                    name = f"w{wait:g}-l{number}-r{turn}"
                    found[f"{wait:g}"][loop].append(train(loop, wait, steps, Path(runs), name))
                    print(f"{name}: {found[f'{wait:g}'][loop][-1]['rollouts_per_second']:.1f} rollouts/s", flush=True)
    return found


def medians(done: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {figure: statistics.median(one[figure] for one in done) for figure in done[0]}


def show(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print one line per loop."""
    for wait, loops in found.items():
        print(f"\nmean pause {wait} s")
        heads = ("rollouts/s", "of sync", "CPU s", "engine idle", "trainer idle", "age", "max")
        print(f"{'':10}" + "".join(f"{head:>14}" for head in heads))
        base = medians(loops["sync"])["rollouts_per_second"]
        for loop, done in loops.items():
            row = medians(done)
            cells = (
                f"{row['rollouts_per_second']:.1f}",
                f"{row['rollouts_per_second'] / base:.2f}",
                f"{row['cpu_seconds_per_rollout']:.3f}",
                *(f"{row[idle]:.0%}" for idle in ("engine_idle", "trainer_idle")),
                f"{row['staleness_mean']:.2f}",
                f"{row['staleness_max']:.0f}",
            )
            print(f"{loop:10}" + "".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    """Measure, print a table and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", type=float, nargs="+", default=[0.0, 1.0], metavar="SECONDS")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    found = measure(arguments.waits, arguments.steps, arguments.rounds)
    show(found)
    if arguments.json is not None:
        settings = {key: value for key, value in vars(arguments).items() if key != "json"}
        machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
        whole = {"settings": settings, "machine": machine, "mean_pause_seconds": found}
        arguments.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
