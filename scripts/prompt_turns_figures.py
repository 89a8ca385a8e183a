"""Takes the figures of "Weights and prompts in turns": when does each way of learning leave a reward of zero?

The agent begins with a prompt under which its policy earns nothing, so updates of the weights have nothing to learn
from. One of the four texts that the scripted reflection function proposes is the instruction that the policy obeys. The
policy is made first if it is not in the folder. Runs that are already in the folder are used, not made again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from learning_figures import EXAMPLE, ROOT
from prompt_turns.policy import make_policy
from prompt_turns.reflection import START

HERE = Path("scripts/prompt_turns")
REFLECTION = (
    *("--set", f"prompts.config.reflection.function={HERE}/reflection.py:reflect"),
    *("--set", "prompts.config.minibatch=6"),
)
TURNS = ("--set", "iterations=4", *REFLECTION, "--learning-rate", "1e-3")
WAYS: dict[str, tuple[str, ...]] = {
    "prompts alone": (*("--algorithm", f"{HERE}/prompts_alone.py:PromptsAlone", "--set", "iterations=4", *REFLECTION),),
    "weights alone": ("--algorithm", "lightning_rl", "--learning-rate", "1e-3"),
    "in turns, prompts first": ("--algorithm", "alternate", "--set", "begin=prompts", *TURNS),
    "in turns, weights first": ("--algorithm", "alternate", "--set", "begin=weights", *TURNS),
}


def run(folder: Path, way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run, which is made if it is not there."""
    name = f"{way.replace(', ', '-').replace(' ', '-')}-{seed}"
    runs = folder / "runs"
    if not (runs / name / "report.json").exists() and not (folder / f"{name}.ended").exists():
        command = [sys.executable, "-m", "leyden.core.cli", "train", f"{HERE}/agent.py:agent", *WAYS[way]]
        command += ["--policy", str(folder / "policy"), "--prompt", f"prompt={folder / 'start.txt'}"]
        command += ["--tasks", str(folder / "train.jsonl"), "--val", str(folder / "val.jsonl")]
        command += ["--tasks-per-step", "4", "--steps", str(options.steps), "--seed", str(seed)]
        command += ["--no-sampled-eval", "--no-check", "--isolation", "shared", "--runs", str(runs), "--name", name]
        command += ["--eval-every", str(options.eval_every)]
        if "turns" in way:
            command += ["--set", f"updates={options.updates}"]
        if way == "weights alone":
            command += ["--set", f"max_empty_batches={options.steps}"]
        done = subprocess.run([*command, "--quiet"], cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            (folder / f"{name}.ended").write_text(done.stderr.strip().splitlines()[-1])
    return figures(folder, name, options.steps)


def figures(folder: Path, name: str, steps: int) -> dict[str, Any]:
    """Return when an evaluated version first earned anything on the held-out tasks, and what was earned in the end."""
    run_folder, ended = folder / "runs" / name, folder / f"{name}.ended"
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    rollouts, first, curve = 0, None, [0.0]
    for line in lines:
        if "rollouts" in line:
            rollouts += line["rollouts"]
        elif "success" in line:
            curve.append(line["success"])
            if line["success"] > 0 and first is None:
                first = {"step": line["step"], "rollouts": rollouts}
    found: dict[str, Any] = {"run": name, "leaves_zero": first, "held_out": curve[1:]}
    if ended.exists():
        return found | {"ended": ended.read_text(), "batches": steps}
    report = json.loads((run_folder / "report.json").read_text())
    return found | {
        "rollouts": rollouts,
        "after": report["success_after"],
        "combinations": report["combinations"].get("val"),
    }


def main() -> None:
    """Make what is missing, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the policy and the runs are kept")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--updates", type=int, default=3, help="updates between two prompt rounds")
    parser.add_argument("--eval-every", type=int, default=1, help="steps between evaluations; 0: before and after only")
    parser.add_argument("--tasks", type=int, default=24, help="training tasks; half of them select prompts")
    parser.add_argument("--held-out", type=int, default=20, help="held-out tasks")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", options.tasks), ("val", options.held_out)):
        rows = (ROOT / EXAMPLE / f"{name}.jsonl").read_text().splitlines(keepends=True)[:count]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    (folder / "start.txt").write_text(START)
    if not (folder / "policy" / "model.safetensors").exists():
        tasks = [json.loads(line) for line in (ROOT / EXAMPLE / "train.jsonl").read_text().splitlines()]
        make_policy(ROOT / EXAMPLE / "policy", tasks, folder / "policy")
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        for way in options.ways:
            one = run(folder, way, seed, options)
            found.setdefault(way, []).append(one)
            print(json.dumps({"way": way, "seed": seed, **one}), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
