"""Seconds per policy update: a rollout's calls apart, merged, and merged with what rollouts begin with read once.

All three compute the same gradient. The shape is the quickstart's: 128 rollouts of a two-call agent, in groups of eight
with the same prompt, a tiny Qwen3.
The ways take turns, so that a busy machine slows each alike; the ratio of medians is what to read.

    python benchmarks/update.py --json update.json
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater, UpdateReport
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy

MODEL = TinyShape(vocab=623, hidden=96, intermediate=288, layers=3, heads=4, key_value_heads=2, head_dim=24)
ROLLOUT = RolloutShape(system=96, question=23, calls=(23, 5), observation=14)
GROUP = 8
WAYS = {"separate": (False, False), "merged": (True, False), "merged, shared read once": (True, True)}


def updater(merge: bool, share_prefix: bool, token_budget: int | None) -> Updater:
    """An updater of a fresh model, the same each time."""
    config = UpdateConfig(learning_rate=6e-4, merge=merge, share_prefix=share_prefix, token_budget=token_budget)
    return Updater(tiny_policy(shape=MODEL), config)


def timed(trainer: Updater, trained: list[WeightedTransition]) -> tuple[float, float, UpdateReport]:
    """Wall seconds, CPU seconds and report of one step."""
    wall, cpu = time.perf_counter(), time.process_time()
    report = trainer.step(trained)
    return time.perf_counter() - wall, time.process_time() - cpu, report


def measure(trained: list[WeightedTransition], repeats: int, token_budget: int | None) -> dict[str, dict[str, float]]:
    """Time every way in turn, `repeats` times after one warm-up."""
    trainers = {name: updater(*way, token_budget) for name, way in WAYS.items()}
    for trainer in trainers.values():
        timed(trainer, trained)
    runs = {name: list[tuple[float, float, UpdateReport]]() for name in WAYS}
    for _ in range(repeats):
        for name, trainer in trainers.items():
            runs[name].append(timed(trainer, trained))
    return {
        name: {
            "seconds_median": statistics.median(seconds for seconds, _, _ in done),
            "seconds_min": min(seconds for seconds, _, _ in done),
            "cpu_seconds_median": statistics.median(cpu for _, cpu, _ in done),
            "sequences": done[0][2].sequences,
            "tokens_read": done[0][2].tokens_read,
        }
        for name, done in runs.items()
    }


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per way."""
    slowest = rows["separate"]["seconds_median"]
    print(f"{'':24}{'s/step':>8}{'min':>8}{'CPU s':>8}{'sequences':>11}{'tokens read':>13}{'speed-up':>10}")
    for name, row in rows.items():
        print(
            f"{name:24}{row['seconds_median']:8.2f}{row['seconds_min']:8.2f}{row['cpu_seconds_median']:8.2f}"
            f"{row['sequences']:11}{row['tokens_read']:13}{slowest / row['seconds_median']:10.2f}"
        )


def main() -> None:
    """Measure, print a table and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--token-budget", type=int, default=UpdateConfig(learning_rate=0.0).token_budget)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trained = synthetic_rollouts(
        arguments.rollouts, MODEL.vocab, shape=ROLLOUT, single_call_share=0.2, group_size=GROUP
    )
    print(f"{len(trained)} transitions of {arguments.rollouts} rollouts, {arguments.threads} thread(s)")
    rows = measure(trained, arguments.repeats, arguments.token_budget)
    show(rows)
    if arguments.json is not None:
        found = {
            "settings": {key: value for key, value in vars(arguments).items() if key != "json"},
            "machine": {"platform": platform.platform(), "torch": torch.__version__},
            "transitions": len(trained),
            "ways": rows,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
