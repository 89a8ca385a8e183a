"""Takes the figures of structured output that trains: agents whose answer is one field of its schema, several seeds.

The agents are in `structured_training`; the first word of a file's name is the agent's task. `calculation` sends its
class as a forced tool. All others send the class's JSON schema: five agents of four frameworks with the calculation as
a text, `operation` with an enumeration, and those of `sums` with an integer. Their tasks are those of two examples. The
tiny policies of the five are made by `make_tiny_policy.py` where they are missing. Policies and runs that are already
in the folder are used, not made again.
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
"""Folder with the tasks of each kind of agent."""
FRAMEWORKS = ("chain", "create_agent", "openai_agents", "autogen", "crewai")
FIVE = tuple(f"calculation_{framework}" for framework in FRAMEWORKS)
MADE_FROM = dict.fromkeys(FIVE, "calculation_chain") | {"calculation_crewai": "calculation_crewai"}
"""Agent whose traces make the policy: four of the five have the same prompts, and CrewAI writes its own."""
SUPERVISED = {"calculation_chain": "2800", "calculation_crewai": "1200"}
"""Steps of the policies' supervised stages; CrewAI's prompts are five times as long."""


SIZES = {"calculation_crewai": {"steps": 10, "held_out": 200}}
"""Smaller sizes than the options' defaults: a crew takes ten times as long as another agent."""


def sized(options: argparse.Namespace, agent: str) -> argparse.Namespace:
    """Return the options of an agent's runs: an option that is not given has the agent's own default."""
    sizes = {"steps": 15, "held_out": 400} | SIZES.get(agent, {})
    given = {name: getattr(options, name) for name in sizes if getattr(options, name) is not None}
    return argparse.Namespace(**vars(options) | sizes | given)


def kind_of(agent: str) -> str:
    """Return the first word of an agent's name."""
    return agent.split("_")[0]


def policy_of(options: argparse.Namespace, agent: str) -> Path:
    """Return the policy that an agent begins with; made if it is a tiny one that is not there."""
    if options.policy is not None or agent not in MADE_FROM:
        return options.policy or CALCULATOR / "policy"
    source = MADE_FROM[agent]
    path = options.folder / "policies" / source
    if not (path / "model.safetensors").exists():
        command = [sys.executable, "scripts/make_tiny_policy.py", "--agent", f"{AGENTS}/{source}.py:agent"]
        subprocess.run([*command, "--steps", SUPERVISED[source], "--out", str(path)], cwd=ROOT, check=True)
    return path


def held_out_names(options: argparse.Namespace, agent: str) -> tuple[str, ...]:
    """Return the names of an agent's files of held-out tasks; the second has other wordings than the first."""
    return ("val", "val_unseen") if options.other_wordings and TASKS[kind_of(agent)] == CALCULATOR else ("val",)


def arguments(options: argparse.Namespace, agent: str, seed: int) -> list[str]:
    """Return the words of `leyden train` for one seed; writes the files of held-out tasks."""
    kind = kind_of(agent)
    words = [f"{AGENTS}/{agent}.py:agent", "--reward", f"{AGENTS}/reward.py:{kind}"]
    words += ["--tasks", f"{TASKS[kind]}/train.jsonl"]
    for name in held_out_names(options, agent):
        rows = (ROOT / TASKS[kind] / f"{name}.jsonl").read_text().splitlines()[: options.held_out]
        path = options.folder / f"held_out_{options.held_out}" / kind / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n")
        words += ["--val", str(path)]
    words += ["--policy", str(policy_of(options, agent)), "--learning-rate", options.learning_rate]
    words += ["--steps", str(options.steps), "--tasks-per-step", str(options.tasks), "--group-size", str(options.group)]
    return [*words, "--seed", str(seed), "--runs", str(options.folder / "runs"), "--quiet"]


def report(options: argparse.Namespace, agent: str, seed: int) -> dict[str, Any]:
    """Return the report of a seed's run, which is trained if it is not there."""
    name = f"{agent}-seed{seed}"
    found = options.folder / "runs" / name / "report.json"
    if not found.exists():
        command = [sys.executable, "-m", "leyden.core.cli", "train", *arguments(options, agent, seed), "--name", name]
        subprocess.run(command, cwd=ROOT, check=True)
    return json.loads(found.read_text())


def row(agent: str, seed: int, names: tuple[str, ...], found: dict[str, Any]) -> str:
    """Return one line of the table; without a run on other wordings, their cells have a dash."""
    cells = [agent, str(seed)]
    for name in names:
        result = found["held_out"].get(name)
        for before, after in (("before", "after"), ("sampled_before", "sampled_after")):
            cells.append(f"{100 * result[before]:.1f} → {100 * result[after]:.1f}" if result else "–")
    return "| " + " | ".join([*cells, f"{found['transitions']:,}", f"{found['seconds']:.0f}"]) + " |"


def main() -> None:
    """Make and train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where policies and runs are kept")
    choices = sorted(path.stem for path in (ROOT / AGENTS).glob("*.py") if path.stem != "reward")
    parser.add_argument("--agents", nargs="+", choices=choices, default=FIVE, help="default: the five")
    parser.add_argument("--policy", type=Path, help="default: for the five the tiny ones, else the calculator's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="default: 15, with CrewAI 10")
    parser.add_argument("--tasks", type=int, default=16, help="tasks of a step")
    parser.add_argument("--group", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--learning-rate", default="6e-4")
    parser.add_argument("--held-out", type=int, help="held-out tasks of each file; default: 400, with CrewAI 200")
    parser.add_argument("--other-wordings", action="store_true", help="held-out tasks in other wordings, too")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = max((held_out_names(options, agent) for agent in options.agents), key=len)
    held_out = " | ".join(f"{name}, {how}" for name in names for how in ("greedy", "sampled"))
    print(f"| agent | seed | {held_out} | transitions | seconds |")
    print("|---" * (2 * len(names) + 4) + "|")
    for agent in options.agents:
        for seed in options.seeds:
            print(row(agent, seed, names, report(sized(options, agent), agent, seed)), flush=True)


if __name__ == "__main__":
    main()
