"""A small training with VERL on a CPU: `python -m verl_cpu.training ADDRESS RUNS NAME AGENT STEPS`.

Further words are hydra overrides; `tutorial` begins with the tutorial's dictionary, `resume` goes on with the run.
ADDRESS is that of a Ray cluster whose processes have `VARIABLES`.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from verl_cpu.environment import ENVIRONMENT
from verl_cpu.tutorial import TUTORIAL

from leyden.core.algorithm.verl.algorithm import VERL, VERLConfig
from leyden.core.algorithm.verl.driver.derived_settings import merged
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.launch import ResumeChanges, resume, train_here
from leyden.core.trainer.monitoring.display import make_display
from leyden.core.trainer.rollouts.tasks import load_tasks
from leyden.core.trainer.trainer import Trainer

EXAMPLES = Path(__file__).parents[3] / "examples"
VARIABLES = {**ENVIRONMENT, "VERL_USE_EXTERNAL_MODULES": "verl_cpu.platform,verl_cpu.rollout"}
"""Of every process of VERL's, those of the cluster included."""
CONFIG: dict[str, Any] = {
    "data": {"max_prompt_length": 512, "max_response_length": 64, "dataloader_num_workers": 0},
    "actor_rollout_ref": {
        "model": {"override_config": {"attn_implementation": "sdpa"}, "enable_gradient_checkpointing": False},
        "actor": {
            "strategy": "fsdp2",
            "ppo_micro_batch_size_per_gpu": 8,
            "optim": {"lr": 6e-4},
            "use_torch_compile": False,
            "fsdp_config": {
                "use_torch_compile": False,
                "model_dtype": "float32",
                "mixed_precision": {"param_dtype": "fp32"},
            },
        },
        "rollout": {
            "name": "hf_cpu",
            "tensor_model_parallel_size": 1,
            "log_prob_micro_batch_size_per_gpu": 8,
            "free_cache_engine": False,
            "enforce_eager": True,
            "dtype": "float32",
        },
    },
    "reward": {"num_workers": 1},
    "trainer": {"n_gpus_per_node": 1, "device": "cpu"},
    "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
}
TASKS_PER_STEP, GROUP_SIZE, HELD_OUT = 4, 4, 6
SIZES: dict[str, Any] = {
    "data": {"train_batch_size": TASKS_PER_STEP},
    "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": TASKS_PER_STEP}},
}
"""What is swapped of the tutorial's dictionary beside what `CONFIG` says."""


def command_line(folder: Path, name: str, agent: Path, config: dict[str, Any], steps: int, address: str) -> list[str]:
    """Words of a `leyden train` for an example's agent, with the files that they name written into `folder`."""
    tasks = EXAMPLES / "calculator_langgraph"
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    rows = (tasks / "val.jsonl").read_text().splitlines()[:HELD_OUT]
    (folder / "few.jsonl").write_text("\n".join(rows) + "\n")
    return [
        *("train", f"{agent}/agent.py:agent", "--backend", "verl", "--config", str(folder / f"{name}.yaml")),
        *("--set", f"ray_address={address}", "--set", "environment.TORCH_SHOW_CPP_STACKTRACES=1"),
        *("--tasks", f"{tasks}/train.jsonl", "--val", str(folder / "few.jsonl")),
        *("--reward", f"{agent}/reward.py:score", "--policy", f"{agent}/policy"),
        *("--tasks-per-step", str(TASKS_PER_STEP), "--group-size", str(GROUP_SIZE), "--concurrency", "8"),
        *("--keep-checkpoints", str(steps)),
        *("--steps", str(steps), "--name", name, "--runs", str(folder)),
    ]


class KeepingTrainer(Trainer):
    """Keeps the weights of every version, so that every call can be held against what drew it."""

    def _config(self, *args: Any, **kwargs: Any) -> RunConfig:
        config = super()._config(*args, **kwargs)
        return msgspec.structs.replace(config, keep_checkpoints=config.steps)


def main(address: str, runs: str, name: str, agent: str, steps: int, words: list[str]) -> None:
    """Train one of the examples' agents, or go on with it."""
    if "resume" in words:
        resume(Path(runs), name, train_here(make_display(quiet=True)), ResumeChanges(steps=steps))
        return
    tasks, example = EXAMPLES / "calculator_langgraph", EXAMPLES / agent
    overrides = tuple(word for word in words if word != "tutorial")
    policy = {"actor_rollout_ref": {"model": {"path": str(example / "policy")}}}
    config = merged(TUTORIAL, CONFIG, SIZES, policy, _steps(steps)) if "tutorial" in words else CONFIG
    trainer = KeepingTrainer(
        algorithm=VERL(VERLConfig(config=config, overrides=overrides, ray_address=address, environment=VARIABLES)),
        policy=None if "tutorial" in words else example / "policy",
        steps=steps,
        tasks_per_step=TASKS_PER_STEP,
        group_size=GROUP_SIZE,
        n_runners=8,
        name=name,
        runs=runs,
        quiet=True,
    )
    training, held_out = load_tasks(tasks / "train.jsonl")[:32], load_tasks(tasks / "val.jsonl")[:HELD_OUT]
    trainer.fit(f"{example}/agent.py:agent", training, held_out, f"{example}/reward.py:score")


def _steps(steps: int) -> dict[str, Any]:
    """The tutorial's numbers of them are for a larger data set; its trackers have no account here."""
    return {"trainer": {"total_training_steps": steps, "test_freq": steps, "logger": ["console"]}}


if __name__ == "__main__":
    where, kept, called, example, planned, *more = sys.argv[1:]
    main(where, kept, called, example, int(planned), more)
