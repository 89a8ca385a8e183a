"""Takes the figures of docs/results.md: the whole chain, supervised stage included, for several seeds.

For each seed a policy is made from nothing, then trained by the command that the quickstart prints, with the second
held-out set beside the first. Policies and runs that are already in the folder are used, not made again. For another
calculator than LangGraph's give `--agent` and `--reward`; with `--policy` every seed trains that policy.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLE = Path("examples/calculator_langgraph")


@dataclass(frozen=True)
class Subject:
    """Whose figures are taken, and where they are kept."""

    agent: str
    reward: str
    folder: Path
    steps: int


def made_policy(subject: Subject, seed: int, confusion: str) -> Path:
    """The supervised policy of a seed; made if it is not there."""
    path = subject.folder / "policies" / (f"seed{seed}" if confusion == "full" else f"{confusion}_seed{seed}")
    if not (path / "model.safetensors").exists():
        command = [sys.executable, "scripts/make_tiny_policy.py", "--agent", subject.agent]
        command += ["--seed", str(seed), "--out", str(path)]
        began = time.monotonic()
        subprocess.run(command + (["--confusion", confusion] if confusion != "full" else []), cwd=ROOT, check=True)
        (path / "supervised_seconds.json").write_text(json.dumps(time.monotonic() - began))
    return path


def trained(runs: Path, name: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """The report of the run `name`, trained by `leyden train` if it is not there; None if it did not finish."""
    report = runs / name / "report.json"
    if not report.exists():
        command = [sys.executable, "-m", "leyden.core.cli", "train", *arguments]
        done = subprocess.run([*command, "--runs", str(runs), "--name", name, "--quiet"], cwd=ROOT, check=False)
        if not report.exists():
            print(f"{name} did not finish: exit code {done.returncode}", flush=True)
            return None
    return json.loads(report.read_text())


def trained_run(subject: Subject, name: str, policy: Path, seed: int) -> dict[str, Any]:
    """The report of a subject's run, or what is known of one that did not finish."""
    runs = subject.folder / "runs"
    arguments = [subject.agent, "--tasks", f"{EXAMPLE}/train.jsonl", "--reward", subject.reward]
    arguments += ["--val", f"{EXAMPLE}/val.jsonl", "--val", f"{EXAMPLE}/val_unseen.jsonl"]
    arguments += ["--policy", str(policy), "--learning-rate", "6e-4", "--steps", str(subject.steps)]
    report = trained(runs, name, [*arguments, "--seed", str(seed)])
    return unfinished(runs / name) if report is None else report


def unfinished(run: Path) -> dict[str, Any]:
    """What is known of a run that stopped for want of anything to learn: its held-out success before."""
    held_out: dict[str, Any] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if "held_out" in line:
            result = held_out.setdefault(line["held_out"], {})
            result.update({"before": line["success"]} if "success" in line else {"sampled_before": line["sampled"]})
    return {"held_out": held_out}


def row(name: str, report: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [name]
    for held_out in ("val", "val_unseen"):
        result = report["held_out"][held_out]
        for kind in ("before", "after", "sampled_before", "sampled_after"):
            cells.append(f"{100 * result[kind]:.1f}" if kind in result else "–")
    cells += [f"{report[key]:.0f}" if key in report else "–" for key in ("seconds", "cpu_seconds")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Make what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where policies and runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--agent", default=f"{EXAMPLE}/agent.py:agent")
    parser.add_argument("--reward", default=f"{EXAMPLE}/reward.py:score")
    parser.add_argument("--policy", type=Path, help="one policy for all seeds")
    options = parser.parse_args()
    subject = Subject(options.agent, options.reward, options.folder.resolve(), options.steps)
    lines = [
        "| run | val greedy before | after | sampled before | after "
        "| unseen greedy before | after | sampled before | after | s | CPU s |",
        "|---|" + "---|" * 10,
    ]
    for seed in options.seeds:
        policy = options.policy or made_policy(subject, seed, "full")
        lines.append(row(f"seed {seed}", trained_run(subject, f"seed{seed}", policy, seed)))
        print(lines[-1], flush=True)
    if options.policy is None:
        policy = made_policy(subject, 0, "none")
        lines.append(row("no confusion", trained_run(subject, "none_seed0", policy, 0)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
