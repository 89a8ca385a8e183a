"""VERL's own trainer: starts it, with Leyden's estimators registered and with hooks that report to the run."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leyden.core.algorithm.external_loop import RunEndpoint
from leyden.core.algorithm.verl.advantages import is_row, row_advantages
from leyden.core.algorithm.verl.driver.launch import TOKEN, URL, ray_options
from leyden.core.algorithm.verl.inside_verl.monitors import missing_capacity, report_repeated
from leyden.core.algorithm.verl.inside_verl.run_client import RunClient
from leyden.core.algorithm.verl.inside_verl.trainer_hooks import ReportingColocated, ReportingSeparate, ReportingSync
from leyden.core.algorithm.verl.inside_verl.verl_queue import stored_credit
from leyden.core.algorithm.verl.settings import SECTION, LeydenOptions
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
    token_level_rewards: "Tensor", response_mask: "Tensor", index: Any, config: Any, **unused: Any
) -> "tuple[Tensor, Tensor]":
    """Return advantages and returns of a batch, shape `(rows, tokens)` each, as VERL calls an estimator.

    `index` holds the keys of the rows, and `config.leyden` defines how they are compared. All tokens of a call share
    its advantage and its return, which is the target of VERL's critic. Rows that VERL pads the batch with get 0 and
    have no effect. Tokens that VERL masks get 0, but their rows still count.
    """
    del unused
    keys = [str(key) for key in index]
    real_rows = [number for number, key in enumerate(keys) if is_row(key)]
    options = LeydenOptions.of(plain(OmegaConf.create(config)[SECTION], resolve=True))
    estimation = options.estimation()
    row_keys = [keys[number] for number in real_rows]
    rows = stored_credit(row_keys, values=estimation.estimator.needs_values) if row_keys else []
    columns_2N = np.zeros((2, len(keys)))
    columns_2N[0, real_rows] = row_advantages(rows, estimation)
    columns_2N[1, real_rows] = [row.credit for row in rows]
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
    full_config = OmegaConf.create(config)
    runtime: dict[str, Any] = constants.get_ppo_ray_runtime_env(full_config)
    variables = {"TRANSFER_QUEUE_ENABLE": "1", **environment}
    ray.init(**ray_options(plain(full_config.ray_kwargs.ray_init), runtime, variables, ray_address))
    endpoint = RunEndpoint(url=environment[URL], token=environment[TOKEN])
    try:
        with report_repeated(_missing_capacity, lambda what: asyncio.run(_send_message(endpoint, what))):
            main.run_ppo(full_config, main.TaskRunnerV1)
    finally:
        ray.shutdown()


def _missing_capacity() -> str | None:
    """Return what VERL's runs wait for in the cluster that this process has joined; None if nothing."""
    ray: Any = import_module("ray")
    util: Any = import_module("ray.util")
    groups: list[dict[str, Any]] = list(util.placement_group_table().values())
    own = [group for group in groups if group["state"] == "PENDING" and "verl_group" in group["name"]]
    return missing_capacity(
        [list(group["bundles"].values()) for group in own], ray.available_resources(), ray.cluster_resources()
    )


async def _send_message(endpoint: RunEndpoint, text: str) -> None:
    driver = RunClient(endpoint)
    try:
        await driver.send_message(UserMessage(text))
    finally:
        await driver.close()


def register_trainers(trainers: Any) -> None:
    """Replace VERL's registered trainers by subclasses that report to the run; `trainers` is VERL's module of them.

    The subclasses call VERL's own methods for all work. Raises TrainingError if another plug-in replaced a trainer.
    """
    trainer_classes = {
        "sync": (ReportingSync, trainers.PPOTrainerSync),
        "colocate_async": (ReportingColocated, trainers.PPOTrainerColocateAsync),
        "separate_async": (ReportingSeparate, trainers.PPOTrainerSeparateAsync),
    }
    registry: dict[str, Any] = import_module(f"{trainers.__name__}.trainer_base").TRAINER_REGISTRY
    for name, (reporting, original) in trainer_classes.items():
        if registry.pop(name) is not original:
            raise TrainingError(f"another plug-in has replaced VERL's trainer {name}: remove that plug-in")
        trainers.register_trainer(name)(type(f"Told{original.__name__}", (reporting, original), {}))


register()
