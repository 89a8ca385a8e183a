"""`leyden quickstart`: `leyden train` on the shipped calculator agent, with its arguments filled in."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from leyden.core.cli.options import RUNS, JsonOption, NameOption, QuietOption, RunsOption, SeedOption
from leyden.core.errors import UsageError

EXAMPLE = Path("examples/calculator_langgraph")
STEPS = 25


def quickstart(
    context: typer.Context,
    *,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="Print the command without running it.")
    ] = False,
    name: NameOption = None,
    steps: Annotated[int, typer.Option(help="Weight updates to take.")] = STEPS,
    seed: SeedOption = 0,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Train the example calculator agent: a LangGraph agent that knows nothing of Leyden."""
    command = quickstart_command(find_example(), name=name, steps=steps, seed=seed)
    if runs != RUNS:
        command += ["--runs", str(runs)]
    if print_command or not (quiet or json):
        sys.stdout.write(shlex.join(["leyden", *command]) + "\n")
        sys.stdout.flush()
    if print_command:
        return
    whole = context.find_root().command
    whole(command + ["--quiet"] * quiet + ["--json"] * json, prog_name="leyden", standalone_mode=False)


def quickstart_command(example: Path, *, name: str | None, steps: int, seed: int) -> list[str]:
    """The arguments of `leyden` that train the agent in `example`."""
    command = ["train", f"{example / 'agent.py'}:agent"]
    command += ["--tasks", str(example / "train.jsonl"), "--val", str(example / "val.jsonl")]
    command += ["--reward", f"{example / 'reward.py'}:score", "--policy", str(example / "policy")]
    command += ["--learning-rate", "6e-4", "--steps", str(steps), "--seed", str(seed)]
    return command + ([] if name is None else ["--name", name])


def find_example() -> Path:
    """The example's folder, here or above; raises UsageError when this is not a checkout."""
    for folder in (Path(), *Path.cwd().parents):
        if (folder / EXAMPLE / "agent.py").exists():
            return folder / EXAMPLE
    raise UsageError(
        f"quickstart trains {EXAMPLE}, which is part of the repository: run it in a checkout of the repository"
    )
