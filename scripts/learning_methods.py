"""Compares ways to learn on one agent each, over several seeds: methods, credit, loops.

Every run starts from the shipped policy of the calculator, as the quickstart does, and is evaluated on known wordings
before and after, greedily and sampled. Settings are those of the how-to pages; nothing is tuned here. Runs that are
already in the folder are used, not made again, so that a comparison may be taken in pieces.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_figures import trained

CALCULATOR, TEAM = "examples/calculator_langgraph", "examples/team_langgraph"
RULES = json.dumps(
    [
        {"kind": "tool", "matches": "^-?[0-9]+$", "succeeded": 0.1},
        {"kind": "answer", "matches": "^Answer: -?[0-9]+$", "failed": -0.1},
    ]
)
MEASURES = ("before", "after", "sampled_before", "sampled_after")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to learn."""

    example: str = CALCULATOR
    learning_rate: str = "6e-4"
    options: tuple[str, ...] = ()
    """Of the algorithm's configuration, as `--set` takes them."""
    algorithm: str = "lightning_rl"
    policies: tuple[str, ...] = ("{policy}",)
    """As `--policy` takes them; `{policy}` is the shipped one's folder."""
    arguments: tuple[str, ...] = ()
    """Further ones of the command line."""


ARMS = {
    "grpo": Arm(),
    "ppo": Arm(options=("advantage=gae", "critic=own", "critic.learning_rate=1e-3")),
    "reinforce_plus_plus": Arm(options=("advantage=reinforce_plus_plus",)),
    "sft_best": Arm(algorithm="sft", learning_rate="3e-4", options=("keep=best", "above=0")),
    "dpo": Arm(algorithm="dpo", learning_rate="3e-4", options=("loss=dpo", "loss.beta=0.2")),
    "one_off": Arm(options=("loop=one_off",)),
    "async": Arm(options=("loop=async",)),
    "team_uniform": Arm(example=TEAM),
    "team_separate": Arm(
        example=TEAM,
        policies=("planner={policy}", "reporter={policy}"),
        arguments=("--route", "node=planner,to=planner", "--route", "to=reporter"),
    ),
    "team_role_decay": Arm(
        example=TEAM, options=("credit=role_decay", "credit.gamma.planner=0.9", "advantage=turn_level")
    ),
    "team_intermediate": Arm(
        example=TEAM, options=("credit=intermediate", f"credit.rules={RULES}", "advantage=turn_level")
    ),
}


def arguments_of(arm: Arm, seed: int, steps: int) -> list[str]:
    """What `leyden train` is given."""
    arguments = [f"{arm.example}/agent.py:agent", *arm.arguments, "--reward", f"{arm.example}/reward.py:score"]
    arguments += ["--tasks", f"{CALCULATOR}/train.jsonl", "--val", f"{CALCULATOR}/val.jsonl"]
    for policy in arm.policies:
        arguments += ["--policy", policy.format(policy=f"{CALCULATOR}/policy")]
    arguments += ["--learning-rate", arm.learning_rate, "--steps", str(steps), "--seed", str(seed)]
    return [*arguments, "--algorithm", arm.algorithm, *(word for option in arm.options for word in ("--set", option))]


def row(name: str, reports: list[dict[str, Any]]) -> str:
    """One line of the table: of each measure the mean over seeds and its least and greatest, in percent."""
    cells = [name, str(len(reports))]
    for measure in MEASURES:
        values = [100 * report["held_out"]["val"][measure] for report in reports]
        cells.append(f"{statistics.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})")
    cells.append(f"{statistics.mean(report['cpu_seconds'] for report in reports):.0f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Make what is missing, print the table; exit code 1 if a run did not finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--json", type=Path, help="also write the reports here")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    reports: dict[str, list[dict[str, Any]]] = {}
    missing = 0
    for seed in options.seeds:
        for name in options.arms:
            report = trained(folder, f"{name}-{seed}", arguments_of(ARMS[name], seed, options.steps))
            missing += report is None
            if report is not None:
                reports.setdefault(name, []).append(report)
                print(row(f"{name}, seed {seed}", [report]), flush=True)
    print("\n| way | seeds | greedy before | after | sampled before | after | CPU s |\n|---|" + "---|" * 6)
    print("\n".join(row(name, found) for name, found in reports.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(reports, indent=1))
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
