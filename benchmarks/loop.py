"""A training step as a whole: ours, agent and gateway and durable store included, against TRL's `GRPOTrainer`.

Both train the calculator's tiny policy on the same prompts in the same order, with the same group size, token limit,
learning rate and reward; the agent makes one call, as TRL's trainer does. Ours is `leyden train` as a user runs it. TRL
lives in an environment of its own, and is measured as its documentation sets it up and at its best on a CPU:

    uv venv PEER; PEER/bin/python -m pip install torch; uv pip install --python PEER/bin/python trl
    python benchmarks/loop.py --peer-python PEER/bin/python --json loop.json

`--policy` takes a larger policy that already earns rewards, such as SmolLM2-135M after a warm start: `python
scripts/record_expert.py calculator --store sqlite:///expert.db`, then `leyden train --algorithm sft --set spans=…`.
`--stores postgresql redis` adds the defaults with the run's store on a server of this machine, which is as durable as a
store asks it to be; the defaults themselves have a SQLite file. `--sides` limits which sides are measured.

Sides take turns, each run a fresh process, so that a busy machine slows all; starting up and the first steps are not
counted. Without `--peer-python` ours alone is measured.

A step's CPU is that of every process the side has. Ours holds the agent's own (the provider's client, a real connection
to the gateway), the store in SQLite, the check of the served weights after the update, and a checkpoint with the
optimizer after each step; TRL's generates and learns in one process, and saves nothing. Both draw at temperature 1 up
to the same number of tokens and stop at the same one; prompts are compared token by token in number, step by step, and
response tokens are printed, because what is drawn, and so learned, differs.
"""

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

from steps.meter import Step
from steps.sides import Ours, Plan, Trl, our_sides, store_sides, trl_sides
from steps.task import TOOL, messages_of
from stores.places import SHARED, new_uris

from leyden.core.engine.base import EnginePrecision
from leyden.core.trainer.rollouts.tasks import batch, load_tasks

EXAMPLE = Path(__file__).parents[1] / "examples/calculator_langgraph"
COLUMNS = {
    "rollouts_per_s": "rollouts/s",
    "seconds": "s/step",
    "cpu_seconds": "CPU s/step",
    "generated_per_s": "generated tok/s",
    "trained_per_s": "trained tok/s",
}


def make_plan(arguments: argparse.Namespace) -> Plan:
    """Choose the tasks in the order that a run takes them in, and apply the chat template."""
    from transformers import PreTrainedTokenizerFast

    file = EXAMPLE / "train.jsonl"
    rows = load_tasks(file)
    size, steps = arguments.tasks_per_step, arguments.warm_up + arguments.steps
    tasks: list[Any] = [task for n in range(steps) for _, task in batch(rows, n, size, seed=0)]
    tokenizer = cast("Any", PreTrainedTokenizerFast).from_pretrained(arguments.policy)
    prompts: list[str] = [
        tokenizer.apply_chat_template(
            messages_of(task["question"]), tools=[TOOL], tokenize=False, add_generation_prompt=True
        )
        for task in tasks
    ]
    return Plan(
        policy=arguments.policy,
        tasks_file=file,
        tasks=tasks,
        prompts=prompts,
        steps=steps,
        tasks_per_step=size,
        group_size=arguments.group_size,
        learning_rate=arguments.learning_rate,
    )


def compare(sides: Sequence[Ours | Trl], plan: Plan, rounds: int, warm_up: int) -> dict[str, list[list[Step]]]:
    """Run every side `rounds` times, in turns; the steps after the first `warm_up` of each run."""
    found: dict[str, list[list[Step]]] = {side.name: [] for side in sides}
    for n in range(rounds):
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                steps = side.run(plan, Path(folder))
            check(side.name, steps, plan)
            found[side.name].append(steps[warm_up:])
            row = summary([steps[warm_up:]])
            print(f"round {n + 1}: {side.name:<24}{row['rollouts_per_s']:8.1f} rollouts/s", flush=True)
    return found


def check(name: str, steps: list[Step], plan: Plan) -> None:
    """Raise SystemExit unless every step made as many rollouts as was asked for."""
    wanted = plan.tasks_per_step * plan.group_size
    if len(steps) != plan.steps or {step.rollouts for step in steps} != {wanted}:
        raise SystemExit(f"{name} made {[step.rollouts for step in steps]} rollouts, not {plan.steps} times {wanted}")


def same_prompts(found: dict[str, list[list[Step]]]) -> None:
    """Raise SystemExit unless all sides read the same number of prompt tokens, step by step."""
    read = {name: [[step.prompt_tokens for step in run] for run in runs] for name, runs in found.items()}
    if len({json.dumps(run) for runs in read.values() for run in runs}) != 1:
        raise SystemExit(f"the sides did not read the same prompts: {read}")


def summary(runs: list[list[Step]]) -> dict[str, float]:
    """Median over the runs of each run's own means."""
    rows = [_means(run) for run in runs]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: statistics.median(row.get(key, 0.0) for row in rows) for key in keys}


def _means(run: list[Step]) -> dict[str, float]:
    """One run's figures; phases in seconds and CPU seconds a step."""
    count, seconds = len(run), sum(step.seconds for step in run)
    phases: dict[str, list[float]] = {"rest": [seconds, sum(step.cpu_seconds for step in run)]}
    for step in run:
        for name, spent in step.phases.items():
            total = phases.setdefault(name, [0.0, 0.0])
            for clock in (0, 1):
                total[clock] += spent[clock]
    if "generate" in phases:  # `score` is around it
        phases["score"] = [s - g for s, g in zip(phases["score"], phases["generate"], strict=True)]
    for name in phases.keys() - {"rest"}:
        phases["rest"] = [rest - spent for rest, spent in zip(phases["rest"], phases[name], strict=True)]
    update = phases["update" if "update" in phases else "rest"][0]
    generating = next((phases[name][0] for name in ("rollouts", "generate") if name in phases), seconds)
    figures = {
        "rollouts_per_s": sum(step.rollouts for step in run) / seconds,
        "seconds": seconds / count,
        "cpu_seconds": sum(step.cpu_seconds for step in run) / count,
        "generated_per_s": sum(step.response_tokens for step in run) / generating,
        "trained_per_s": sum(step.tokens_trained for step in run) / update,
        "response_tokens": sum(step.response_tokens for step in run) / count,
        "tokens_trained": sum(step.tokens_trained for step in run) / count,
        "reward_first": run[0].reward,
        "reward_last": run[-1].reward,
    }
    for name, (wall, cpu) in phases.items():
        figures |= {f"{name}_s": wall / count, f"{name}_cpu_s": cpu / count}
    return figures


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print a line for each side, and a line for its phases."""
    print(f"\n{'':26}" + "".join(f"{title:>17}" for title in COLUMNS.values()))
    for name, row in rows.items():
        print(f"{name:<26}" + "".join(f"{row[key]:>17,.2f}" for key in COLUMNS))
    print("\nseconds (CPU seconds) a step, by phase; TRL's update is its rest:")
    for name, row in rows.items():
        phases = [key.removesuffix("_cpu_s") for key in row if key.endswith("_cpu_s")]
        print(f"{name:<26}" + "  ".join(f"{p} {row[f'{p}_s']:.2f} ({row[f'{p}_cpu_s']:.2f})" for p in phases))
    print("\nresponse tokens generated and trained a step; mean reward of the first and the last step counted:")
    for name, row in rows.items():
        print(
            f"{name:<26}{row['response_tokens']:>8,.0f}{row['tokens_trained']:>8,.0f}"
            f"{row['reward_first']:>8.2f}{row['reward_last']:>8.2f}"
        )


def ratios(rows: dict[str, dict[str, float]], ours: Sequence[str], peers: Sequence[str]) -> dict[str, dict[str, float]]:
    """How many times as fast each of ours is as each peer: in rollouts a second, and in rollouts a CPU second."""
    return {
        f"{mine} over {peer}": {
            "rollouts_per_s": rows[mine]["rollouts_per_s"] / rows[peer]["rollouts_per_s"],
            "rollouts_per_cpu_s": rows[peer]["cpu_seconds"] / rows[mine]["cpu_seconds"],
        }
        for mine in ours
        for peer in peers
        if mine in rows and peer in rows
    }


def main() -> None:
    """Run the comparison, print its tables, write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON", help="of an environment that holds TRL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2, help="steps of each run that are not counted")
    parser.add_argument("--tasks-per-step", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--policy", type=Path, default=EXAMPLE / "policy", help="one that earns rewards on these tasks")
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--engine-precision", choices=get_args(EnginePrecision), default="float32", help="of our sides")
    parser.add_argument(
        "--update-precision", choices=("float32", "bfloat16"), default="float32", help="of our sides and of TRL, tuned"
    )
    parser.add_argument("--stores", nargs="*", choices=SHARED, default=[], help="of our further sides")
    parser.add_argument("--sides", default="", metavar="REGEX", help="measure only those whose name it finds")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.policy = arguments.policy.resolve()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        new = {name: servers.enter_context(new_uris(name, Path(folder))) for name in arguments.stores}
        measure(arguments, {name: new_uri() for name, new_uri in new.items()})


def measure(arguments: argparse.Namespace, stores: Mapping[str, str]) -> None:
    """Run the comparison, with the defaults on `stores`, too, which are given by name and URI."""
    plan = make_plan(arguments)
    rollouts = plan.tasks_per_step * plan.group_size
    precision = arguments.update_precision
    options = ("--engine-precision", arguments.engine_precision, "--set", f"precision={precision}")
    ours, elsewhere, peer = our_sides(rollouts, options), store_sides(stores, options), arguments.peer_python
    peers = trl_sides(peer.absolute(), rollouts, bfloat16=precision == "bfloat16") if peer else []
    sides = [side for side in (*ours, *elsewhere, *peers) if re.search(arguments.sides, side.name)]
    if not sides:
        names = ", ".join(side.name for side in (*ours, *elsewhere, *peers))
        raise SystemExit(f"--sides {arguments.sides!r} finds none of: {names}")
    found = compare(sides, plan, arguments.rounds, arguments.warm_up)
    same_prompts(found)
    rows = {name: summary(runs) for name, runs in found.items()}
    show(rows)
    compared = ratios(rows, [side.name for side in ours], [side.name for side in peers])
    compared |= ratios(rows, [side.name for side in elsewhere], [ours[0].name])
    for pair, ratio in compared.items():
        print(
            f"{pair:<48}{ratio['rollouts_per_s']:8.2f} x rollouts/s{ratio['rollouts_per_cpu_s']:8.2f} x rollouts/CPU s"
        )
    if arguments.json:
        steps = {name: [[asdict(step) for step in run] for run in runs] for name, runs in found.items()}
        settings = {key: value for key, value in vars(arguments).items() if isinstance(value, int)}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"settings": settings, "rows": rows, "ratios": compared, "steps": steps}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
