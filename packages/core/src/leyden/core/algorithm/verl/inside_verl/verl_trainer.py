"""VERL's own trainer: starts it, with Leyden's estimators registered and with hooks that report to the run."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leyden.core.algorithm.external_loop import RunEndpoint
from leyden.core.algorithm.verl.advantages import is_row, row_advantages
from leyden.core.algorithm.verl.driver.launch import TOKEN, URL
from leyden.core.algorithm.verl.inside_verl.monitors import told_of
from leyden.core.algorithm.verl.inside_verl.ray_capacity import waiting
from leyden.core.algorithm.verl.inside_verl.run_client import RunClient
from leyden.core.algorithm.verl.inside_verl.trainer_hooks import ReportingColocated, ReportingSeparate, ReportingSync
from leyden.core.algorithm.verl.inside_verl.verl_queue import stored_credit
from leyden.core.algorithm.verl.options import SECTION, LeydenOptions
from leyden.core.algorithm.verl.verl_config import OmegaConf, plain
from leyden.core.algorithm.verl.wire import UserMessage
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

core_algos: Any = import_module("verl.trainer.ppo.core_algos")  # imported by name: VERL is an optional dependency


def register() -> None:
    """Register Leyden's estimator with VERL in this process, under one name; repeated calls have no effect."""
    if SECTION not in core_algos.ADV_ESTIMATOR_REGISTRY:
        core_algos.register_adv_est(SECTION)(estimate)


def estimate(
    token_level_rewards: "Tensor", response_mask: "Tensor", index: Any, config: Any, **beside: Any
) -> "tuple[Tensor, Tensor]":
    """Return advantages and returns of a batch, shape `(rows, tokens)` each, as VERL calls an estimator.

    `index` holds the keys of the rows, and `config.leyden` defines how they are compared. All tokens of a call share
    its advantage and its return, which is the target of VERL's critic. Rows that VERL pads the batch with get 0 and
    have no effect. Tokens that VERL masks get 0, but their rows still count.
    """
    del beside
    keys = [str(key) for key in index]
    real = [number for number, key in enumerate(keys) if is_row(key)]
    options = LeydenOptions.of(plain(OmegaConf.create(config)[SECTION], resolve=True))
    estimation = options.estimation()
    named = [keys[number] for number in real]
    rows = stored_credit(named, values=estimation.estimator.needs_values) if named else []
    columns_2N = np.zeros((2, len(keys)))
    columns_2N[0, real] = row_advantages(rows, estimation)
    columns_2N[1, real] = [row.credit for row in rows]
    advantages_BT, returns_BT = (
        torch.as_tensor(column_N, dtype=token_level_rewards.dtype)[:, None] * response_mask for column_N in columns_2N
    )
    return advantages_BT, returns_BT


def train(config: dict[str, Any], environment: dict[str, str], ray_address: str | None) -> None:
    """Start or join a Ray cluster, and run VERL's own trainer on it to the end.

    `environment` holds the variables of all its processes.
    """
    ray: Any = import_module("ray")
    main: Any = import_module("verl.trainer.main_ppo")
    constants: Any = import_module("verl.trainer.constants_ppo")
    whole = OmegaConf.create(config)
    runtime: dict[str, Any] = constants.get_ppo_ray_runtime_env(whole)
    variables = {**runtime["env_vars"], "TRANSFER_QUEUE_ENABLE": "1", **environment}
    given = {name: value for name, value in plain(whole.ray_kwargs.ray_init).items() if value is not None}
    where = given if ray_address is None else {"address": ray_address}
    ray.init(**where, runtime_env={**runtime, "env_vars": variables})
    door = RunEndpoint(url=environment[URL], token=environment[TOKEN])
    try:
        with told_of(_waiting, lambda what: asyncio.run(_say(door, what))):
            main.run_ppo(whole, main.TaskRunnerV1)
    finally:
        ray.shutdown()


def _waiting() -> str | None:
    """Return what VERL's runs wait for in the cluster that this process has joined; None if nothing."""
    ray: Any = import_module("ray")
    util: Any = import_module("ray.util")
    groups: list[dict[str, Any]] = list(util.placement_group_table().values())
    own = [one for one in groups if one["state"] == "PENDING" and "verl_group" in one["name"]]
    return waiting([list(one["bundles"].values()) for one in own], ray.available_resources(), ray.cluster_resources())


async def _say(door: RunEndpoint, what: str) -> None:
    driver = RunClient(door)
    try:
        await driver.said(UserMessage(what))
    finally:
        await driver.close()


def register_trainers(trainers: Any) -> None:
    """Replace VERL's registered trainers by subclasses that report to the run; `trainers` is VERL's module of them.

    The subclasses call VERL's own methods for all work. Raises TrainingError if another plug-in replaced a trainer.
    """
    told = {
        "sync": (ReportingSync, trainers.PPOTrainerSync),
        "colocate_async": (ReportingColocated, trainers.PPOTrainerColocateAsync),
        "separate_async": (ReportingSeparate, trainers.PPOTrainerSeparateAsync),
    }
    registry: dict[str, Any] = import_module(f"{trainers.__name__}.trainer_base").TRAINER_REGISTRY
    for name, (ours, theirs) in told.items():
        if registry.pop(name) is not theirs:
            raise TrainingError(f"VERL's trainer {name} is not its own any more: another plug-in has replaced it")
        trainers.register_trainer(name)(type(f"Told{theirs.__name__}", (ours, theirs), {}))


register()
