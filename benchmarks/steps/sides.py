"""The sides of the comparison: each runs the same steps in a process of its own and says what every step cost."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steps.meter import Step, read_steps
from steps.task import MAX_TOKENS

HERE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every side does."""

    policy: Path
    tasks_file: Path
    tasks: list[dict[str, Any]]
    """Of the file, those that are taken, in that order."""
    prompts: list[str]
    """The same tasks' prompts as text, with the chat template applied."""
    steps: int
    tasks_per_step: int
    group_size: int
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class Ours:
    """`leyden train` as a user runs it: agent, gateway, durable store, a checkpoint after each step."""

    name: str
    options: tuple[str, ...] = ()
    ahead: int = 0
    """Steps that are taken but not counted at the end: the last would learn only, its rollouts made before."""

    def run(self, plan: Plan, folder: Path) -> list[Step]:
        """Train once."""
        steps = folder / "steps.json"
        command = [sys.executable, "-m", "leyden.core.cli", "train", "steps.agent:agent", "--quiet"]
        command += ["--tasks", str(plan.tasks_file), "--reward", "steps.agent:score", "--policy", str(plan.policy)]
        command += ["--steps", str(plan.steps + self.ahead), "--tasks-per-step", str(plan.tasks_per_step)]
        command += ["--group-size", str(plan.group_size), "--learning-rate", str(plan.learning_rate)]
        command += ["--algorithm", "steps.ours:TimedLightningRL", "--set", f"steps_file={json.dumps(str(steps))}"]
        command += ["--runs", str(folder), "--name", "run", *self.options]
        _run(command, folder)
        found = read_steps(steps)[: plan.steps]
        if self.ahead:  # what is collected during an update is not waited for, so this is not how long it takes
            for step in found:
                step.phases["waiting"] = step.phases.pop("rollouts")
        return found


@dataclass(frozen=True, kw_only=True)
class Trl:
    """TRL's `GRPOTrainer` with the prompts as its data set and the reward as a function."""

    name: str
    python: Path
    threads: int = 0
    """Of torch; 0: its own choice."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """How a step's rollouts are read, beside what all sides share."""

    def run(self, plan: Plan, folder: Path) -> list[Step]:
        """Train once."""
        steps, file = folder / "steps.json", folder / "settings.json"
        shared: dict[str, Any] = {
            "output_dir": str(folder / "out"),
            "max_steps": plan.steps,
            "num_generations": plan.group_size,
            "max_completion_length": MAX_TOKENS,
            "learning_rate": plan.learning_rate,
            "lr_scheduler_type": "constant",
            "shuffle_dataset": False,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        rows = [
            {"prompt": prompt, "answer": task["answer"]} for prompt, task in zip(plan.prompts, plan.tasks, strict=True)
        ]
        settings = {"policy": str(plan.policy), "rows": rows, "threads": self.threads, "steps_file": str(steps)}
        file.write_text(json.dumps({**settings, "config": shared | self.config}))
        _run([str(self.python), "-m", "steps.trl", str(file)], folder)
        return read_steps(steps)


def our_sides(rollouts: int, common: tuple[str, ...] = ()) -> list[Ours]:
    """Each has the `common` options: the defaults; a worker more, as there are two cores; all of a step at once.

    The last makes all rollouts of a step at once with those of the next. It learns from tokens of weights that are one
    update old, which neither of the others nor TRL does.
    """
    return [
        Ours(name="Leyden, defaults", options=common),
        Ours(name="Leyden, tuned", options=(*common, "--workers", "2")),
        Ours(
            name="Leyden, one step off",
            options=(*common, "--concurrency", str(rollouts), "--set", "loop=one_off"),
            ahead=1,
        ),
    ]


def store_sides(uris: Mapping[str, str], common: tuple[str, ...] = ()) -> list[Ours]:
    """The defaults with the run's store on each of some servers, by name."""
    return [Ours(name=f"Leyden, {name}", options=(*common, "--store", uri)) for name, uri in uris.items()]


def trl_sides(python: Path, rollouts: int, *, bfloat16: bool = False) -> list[Trl]:
    """As TRL's documentation sets it up, in micro-batches of its default size; and at its best on a CPU.

    With `bfloat16`, the latter use torch's autocast, as Leyden's update does with this precision.
    """
    small: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": rollouts // 8}
    whole: dict[str, Any] = {"per_device_train_batch_size": rollouts, "gradient_accumulation_steps": 1}
    whole |= {"bf16": bfloat16, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    return [
        Trl(name="TRL, defaults", python=python, config=small),
        Trl(name="TRL, tuned, 1 thread", python=python, threads=1, config=whole),
        Trl(name="TRL, tuned, 2 threads", python=python, threads=2, config=whole),
    ]


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = folder / "log.txt"
    with log.open("wb") as out:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=out, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ... ended with {done.returncode}: {log.read_text()[-3000:]}")
