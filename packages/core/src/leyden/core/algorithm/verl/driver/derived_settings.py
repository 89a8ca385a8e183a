"""VERL settings: derives the values of VERL's configuration that the run decides, under VERL's own keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from leyden.core.algorithm.external_loop import LoopPlan
from leyden.core.algorithm.verl.driver.owned_settings import POLICY
from leyden.core.errors import UsageError

PROMPT, RESPONSE = 512, 512
"""VERL's default limits, in tokens."""
UPDATES = {"sync": 1, "colocate_async": 1, "separate_async": 4}
"""VERL's trainers, and the default number of updates in a step of each: `parameter_sync_step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFiles:
    """Files that VERL reads, and the folder of its checkpoints."""

    training: Path
    held_out: Path | None
    checkpoints: Path


def given_value(config: Mapping[str, Any], overrides: Sequence[str], path: str) -> Any:
    """Return the value given for a key: the text of a Hydra override, or the value in `config`; None without one."""
    for override in reversed(overrides):
        key, _, value = override.lstrip("+").partition("=")
        if key.strip() == path:
            return value
    node: Any = config
    for key in path.split("."):
        node = cast("Mapping[str, Any]", node).get(key) if isinstance(node, Mapping) else None
    return node


def planned_steps(config: Mapping[str, Any], overrides: Sequence[str], tasks: int, plan: LoopPlan) -> int:
    """Return the number of steps that VERL will take.

    It comes from VERL's configuration: its steps, or its epochs over `tasks` tasks. Otherwise it is the run's.
    """
    if (steps := given_value(config, overrides, "trainer.total_training_steps")) is not None:
        return int(steps)
    if (epochs := given_value(config, overrides, "trainer.total_epochs")) is not None:
        return int(epochs) * max(1, tasks // batch_size(config, overrides, plan))
    return plan.steps


def batch_size(config: Mapping[str, Any], overrides: Sequence[str], plan: LoopPlan) -> int:
    """Return the number of tasks in a step."""
    return int(given_value(config, overrides, "data.train_batch_size") or plan.tasks_per_step)


def context_length(config: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Return the most tokens of prompt and response together: one less than the length that VERL serves."""
    if (length := given_value(config, overrides, "actor_rollout_ref.rollout.max_model_len")) is not None:
        return int(length) - 1
    prompt, response = (
        given_value(config, overrides, "data.max_prompt_length"),
        given_value(config, overrides, "data.max_response_length"),
    )
    return int(prompt or PROMPT) + int(response or RESPONSE) - 1


def usual_settings(config: Mapping[str, Any], overrides: Sequence[str], steps: int, plan: LoopPlan) -> dict[str, Any]:
    """Return `config` merged with the run's own options, which apply only where `config` has no value."""
    named = given_value(config, overrides, "leyden.advantage") is not None
    mode = trainer_mode(config, overrides)
    updates = int(given_value(config, overrides, f"trainer.v1.{mode}.parameter_sync_step") or UPDATES[mode])
    usual = {
        **({} if named else {"algorithm": {"adv_estimator": "grpo"}}),
        "data": {
            "train_batch_size": plan.tasks_per_step,
            "seed": plan.seed,
            "filter_overlong_prompts": False,
        },
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": max(1, batch_size(config, overrides, plan) // updates)},
            "rollout": {"n": plan.group_size, "max_model_len": context_length(config, overrides) + 1},
        },
        "trainer": {
            "save_freq": plan.checkpoint_every,
            "test_freq": plan.eval_every or steps,
            "total_training_steps": steps,
            "total_epochs": steps,
            "project_name": "leyden",
            "val_before_train": True,
            "logger": ["console"],
        },
    }
    return merged(usual, config)


def trainer_mode(config: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return which of VERL's trainers is configured; raises UsageError for an unknown one."""
    mode = str(given_value(config, overrides, "trainer.v1.trainer_mode") or "sync")
    if mode not in UPDATES:
        raise UsageError(f"trainer.v1.trainer_mode: {mode!r} is none of {', '.join(UPDATES)}")
    return mode


def with_absolute_policy(config: dict[str, Any], overrides: Sequence[str], plan: LoopPlan) -> LoopPlan:
    """Return `plan` with the absolute path of its policy, if that is a folder, and name it so in `config`, too.

    Processes of a Ray cluster have other working directories. What an override names stays as it is.
    """
    if given_value({}, overrides, POLICY) is not None or not Path(plan.policy).is_dir():
        return plan
    absolute = replace(plan, policy=str(Path(plan.policy).absolute()))
    if given_value(config, (), POLICY) == plan.policy:
        config["actor_rollout_ref"] = merged(config["actor_rollout_ref"], {"model": {"path": absolute.policy}})
    return absolute


def own_settings(config: dict[str, Any], plan: LoopPlan, files: TrainerFiles, step: int) -> dict[str, Any]:
    """Return the values that only the run decides.

    Removes from `config` the keys that it may set without contradiction. VERL resumes after `step`; 0 is the beginning.
    """
    trainer = config["trainer"]
    loggers: Any = trainer.pop("logger")
    evaluates = trainer.pop("val_before_train") and step == 0 and files.held_out is not None
    test_every = trainer.pop("test_freq")
    return {
        "data": {
            "train_files": str(files.training),
            "val_files": str(files.held_out or files.training),
        },
        "actor_rollout_ref": {
            "model": {"path": plan.policy},
            "actor": {"checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]}},
            "rollout": {
                "temperature": plan.temperature,
                "calculate_log_probs": True,
                "val_kwargs": {"n": 1},
            },
        },
        "trainer": {
            "use_v1": True,
            "logger": [*([loggers] if isinstance(loggers, str) else loggers), "file"],
            "resume_mode": "resume_path" if step else "disable",
            "resume_from_path": str(files.checkpoints / f"global_step_{step}") if step else None,
            "default_local_dir": str(files.checkpoints),
            "max_actor_ckpt_to_keep": None,
            "max_critic_ckpt_to_keep": None,
            "val_before_train": evaluates,
            "test_freq": -1 if files.held_out is None else test_every,
        },
    }


def merged(first: Mapping[str, Any], *later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mappings merged into one, at every level; later values win."""
    result = dict(first)
    for other in later:
        for key, value in other.items():
            existing = result.get(key)
            both = isinstance(existing, Mapping) and isinstance(value, Mapping)
            result[key] = (
                merged(cast("Mapping[str, Any]", existing), cast("Mapping[str, Any]", value)) if both else value
            )
    return result
