"""Takes the figures of structured output that trains: an agent whose answer is one field of its schema, several seeds.

The agents are in `structured_training`. All are LangChain's `with_structured_output`: `calculation` on a class that it
sends as a forced tool, `operation` and `sums` on a class whose JSON schema it sends, with an enumeration and an
integer. Their tasks are those of two examples. Runs that are already in the folder are used, not made again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AGENTS = Path("scripts/structured_training")
CALCULATOR, SUMS = Path("examples/calculator_langgraph"), Path("examples/sums_lcel")
TASKS = {"calculation": CALCULATOR, "operation": CALCULATOR, "sums": SUMS}
"""Folder with the tasks of each agent."""
HELD_OUT = {CALCULATOR: ("val", "val_unseen"), SUMS: ("val",)}
"""Files of held-out tasks in each folder; the second has other wordings than the first."""


def arguments(options: argparse.Namespace, seed: int) -> list[str]:
    """Return the words of `leyden train` for one seed; writes the files of held-out tasks."""
    words = [f"{AGENTS}/{options.agent}.py:agent", "--reward", f"{AGENTS}/reward.py:{options.agent}"]
    tasks = TASKS[options.agent]
    words += ["--tasks", f"{tasks}/train.jsonl"]
    for name in HELD_OUT[tasks]:
        rows = (ROOT / tasks / f"{name}.jsonl").read_text().splitlines()[: options.held_out]
        (options.folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        words += ["--val", str(options.folder / f"{name}.jsonl")]
    words += ["--policy", str(options.policy), "--learning-rate", options.learning_rate, "--steps", str(options.steps)]
    words += ["--tasks-per-step", str(options.tasks), "--group-size", str(options.group)]
    return [*words, "--seed", str(seed), "--runs", str(options.folder / "runs"), "--name", f"seed{seed}", "--quiet"]


def report(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the report of a seed's run, which is trained if it is not there."""
    found = options.folder / "runs" / f"seed{seed}" / "report.json"
    if not found.exists():
        command = [sys.executable, "-m", "leyden.core.cli", "train", *arguments(options, seed)]
        subprocess.run(command, cwd=ROOT, check=True)
    return json.loads(found.read_text())


def row(seed: int, found: dict[str, Any]) -> str:
    """Return one line of the table."""
    cells = [str(seed)]
    for result in found["held_out"].values():
        for before, after in (("before", "after"), ("sampled_before", "sampled_after")):
            cells.append(f"{100 * result[before]:.1f} → {100 * result[after]:.1f}")
    return "| " + " | ".join([*cells, f"{found['transitions']:,}", f"{found['seconds']:.0f}"]) + " |"


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--agent", choices=sorted(TASKS), default="calculation")
    parser.add_argument("--policy", type=Path, default=CALCULATOR / "policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--tasks", type=int, default=16, help="tasks of a step")
    parser.add_argument("--group", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--learning-rate", default="6e-4")
    parser.add_argument("--held-out", type=int, default=400, help="held-out tasks of each file")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = HELD_OUT[TASKS[options.agent]]
    held_out = " | ".join(f"{name}, {how}" for name in names for how in ("greedy", "sampled"))
    print(f"| seed | {held_out} | transitions | seconds |")
    print("|---" * (2 * len(names) + 3) + "|")
    for seed in options.seeds:
        print(row(seed, report(options, seed)), flush=True)


if __name__ == "__main__":
    main()
