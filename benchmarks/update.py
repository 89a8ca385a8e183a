"""Seconds per policy update: a rollout's calls apart, merged, and merged with what rollouts begin with read once.

All three compute the same gradient. The default model is the quickstart's: 128 rollouts of a two-call agent, in groups
of eight with the same prompt, a tiny Qwen3. `--model 0.5b` and `1.5b` have the sizes of Qwen2.5, random weights, and
rollouts with longer prompts and responses; they are meant for a GPU.
The ways take turns, so that a busy machine slows each alike; the ratio of medians is what to read. They share one model
and one optimizer. On a GPU the peak of its memory is measured, too.

    python benchmarks/update.py --json update.json
    python benchmarks/update.py --device cuda --model 1.5b --precision bfloat16 --rollouts 64 --repeats 3
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from msgspec.structs import replace

from leyden.core.policy.device import DEVICES, check_device
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy

VOCABULARY, CONTEXT = 151936, 32768
MODELS = {
    "tiny": TinyShape(vocab=623, hidden=96, intermediate=288, layers=3, heads=4, key_value_heads=2, head_dim=24),
    "0.5b": TinyShape(
        hidden=896,
        intermediate=4864,
        layers=24,
        heads=14,
        key_value_heads=2,
        head_dim=64,
        vocab=VOCABULARY,
        context=CONTEXT,
    ),
    "1.5b": TinyShape(
        hidden=1536,
        intermediate=8960,
        layers=28,
        heads=12,
        key_value_heads=2,
        head_dim=128,
        vocab=VOCABULARY,
        context=CONTEXT,
    ),
}
SHORT = RolloutShape(system=96, question=23, calls=(23, 5), observation=14)
LONG = RolloutShape(system=400, question=100, calls=(200, 150), observation=100)
GROUP = 8
WAYS = {"separate": (False, False), "merged": (True, False), "merged, shared read once": (True, True)}


def updaters(model: PolicyModel, config: UpdateConfig) -> dict[str, Updater]:
    """Return an updater for each way, of one model and with one optimizer."""
    found = {
        name: Updater(model, replace(config, merge=merge, share_prefix=share)) for name, (merge, share) in WAYS.items()
    }
    for trainer in found.values():
        trainer.optimizer = found["separate"].optimizer
    return found


def timed(trainer: Updater, trained: list[WeightedTransition]) -> dict[str, float]:
    """Take one step; return its wall and CPU seconds, what it read, and the peak of the GPU's memory."""
    on_gpu = trainer.model.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    wall, cpu = time.perf_counter(), time.process_time()
    report = trainer.step(trained)
    if on_gpu:
        torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "sequences": report.sequences,
        "tokens_read": report.tokens_read,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }


def measure(
    model: PolicyModel, trained: list[WeightedTransition], repeats: int, config: UpdateConfig
) -> dict[str, dict[str, float]]:
    """Time every way in turn, `repeats` times after one warm-up."""
    trainers = updaters(model, config)
    for trainer in trainers.values():
        timed(trainer, trained)
    runs = {name: list[dict[str, float]]() for name in WAYS}
    for _ in range(repeats):
        for name, trainer in trainers.items():
            runs[name].append(timed(trainer, trained))
    return {
        name: {
            "seconds_median": statistics.median(run["seconds"] for run in done),
            "seconds_min": min(run["seconds"] for run in done),
            "cpu_seconds_median": statistics.median(run["cpu_seconds"] for run in done),
            "sequences": done[0]["sequences"],
            "tokens_read": done[0]["tokens_read"],
            "peak_gib": max(run["peak_bytes"] for run in done) / 2**30,
        }
        for name, done in runs.items()
    }


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per way."""
    slowest = rows["separate"]["seconds_median"]
    print(
        f"{'':24}{'s/step':>8}{'min':>8}{'CPU s':>8}{'sequences':>11}{'tokens read':>13}{'GPU GiB':>9}{'speed-up':>10}"
    )
    for name, row in rows.items():
        print(
            f"{name:24}{row['seconds_median']:8.2f}{row['seconds_min']:8.2f}{row['cpu_seconds_median']:8.2f}"
            f"{row['sequences']:11}{row['tokens_read']:13}{row['peak_gib']:9.1f}{slowest / row['seconds_median']:10.2f}"
        )


def main() -> None:
    """Measure, print a table and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--token-budget", type=int, default=UpdateConfig(learning_rate=0.0).token_budget)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    check_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    shape = MODELS[arguments.model]
    rollout = SHORT if arguments.model == "tiny" else LONG
    trained = synthetic_rollouts(
        arguments.rollouts, shape.vocab, shape=rollout, single_call_share=0.2, group_size=GROUP
    )
    config = UpdateConfig(learning_rate=6e-4, token_budget=arguments.token_budget, precision=arguments.precision)
    with torch.device(arguments.device):
        model = tiny_policy(shape=shape)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{arguments.threads} thread(s)"
    print(f"{len(trained)} transitions of {arguments.rollouts} rollouts, {arguments.precision}, {where}")
    rows = measure(model, trained, arguments.repeats, config)
    show(rows)
    if arguments.json is not None:
        found = {
            "settings": {key: value for key, value in vars(arguments).items() if key != "json"},
            "machine": {"platform": platform.platform(), "torch": torch.__version__, "device": where},
            "transitions": len(trained),
            "ways": rows,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
