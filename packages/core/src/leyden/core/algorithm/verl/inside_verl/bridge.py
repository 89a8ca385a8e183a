"""The only module that imports VERL and its TransferQueue. Imported inside functions, and by VERL's own processes.

Leyden's estimators become VERL's here, and VERL's configuration plain values; what either means is told elsewhere.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leyden.core.algorithm.external_loop import Door
from leyden.core.algorithm.verl.advantages import RowCredit, is_row, row_advantages
from leyden.core.algorithm.verl.driver.launch import TOKEN, URL
from leyden.core.algorithm.verl.inside_verl.monitors import told_of
from leyden.core.algorithm.verl.inside_verl.ray_capacity import waiting
from leyden.core.algorithm.verl.inside_verl.run_client import Driver
from leyden.core.algorithm.verl.inside_verl.trainer_hooks import ToldColocated, ToldSeparate, ToldSync
from leyden.core.algorithm.verl.options import SECTION, LeydenOptions
from leyden.core.algorithm.verl.rows import CREDIT_FIELD
from leyden.core.algorithm.verl.wire import Said
from leyden.core.errors import TrainingError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

# By name, since VERL is an extra that types are checked without.
hydra: Any = import_module("hydra")
omegaconf: Any = import_module("omegaconf")
tq: Any = import_module("transfer_queue")
core_algos: Any = import_module("verl.trainer.ppo.core_algos")
roles: Any = import_module("verl.trainer.ppo.utils")
verl_config: Any = import_module("verl.utils.config")

OmegaConf: Any = omegaconf.OmegaConf
OmegaConfError: type[Exception] = omegaconf.errors.OmegaConfBaseException
HydraError: type[Exception] = import_module("hydra.errors").HydraException

log = logging.getLogger(__name__)

PARTITION = "train"
"""Of VERL's queue, where the rows are that are trained."""


def default_config(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return VERL's own `ppo_trainer` configuration with hydra's `overrides`, interpolations unresolved.

    Raises UsageError for an override that VERL's configuration does not take.
    """
    folder = Path(str(roles.__file__)).parents[1] / "config"
    try:
        with hydra.initialize_config_dir(str(folder), version_base=None):
            return plain(hydra.compose("ppo_trainer", overrides=list(overrides)))
    except (HydraError, OmegaConfError) as error:
        raise UsageError(f"VERL's configuration does not take this override: {one_line(error)}") from error


def plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration of OmegaConf's as dictionaries, lists and values."""
    found: Any = OmegaConf.to_container(config, resolve=resolve)
    return found


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` with every interpolation replaced; raises UsageError for one that refers to nothing."""
    try:
        return plain(OmegaConf.create(config), resolve=True)
    except OmegaConfError as error:
        raise UsageError(f"VERL's configuration: {one_line(error)}") from error


def field_names(target: str) -> frozenset[str]:
    """Return the fields of the dataclass that VERL makes of a section, named by the section's `_target_`."""
    module, _, name = target.rpartition(".")
    kind: Any = getattr(import_module(module), name)
    return frozenset(field.name for field in fields(kind)) if is_dataclass(kind) else frozenset()


def validate(config: dict[str, Any]) -> None:
    """Raise UsageError, in one line, for what VERL's own validation refuses."""
    whole: Any = OmegaConf.create(config)
    said = StringIO()
    try:
        with redirect_stdout(said):
            verl_config.validate_config(whole, roles.need_reference_policy(whole), roles.need_critic(whole))
    except (AssertionError, ValueError, OmegaConfError, HydraError, ImportError) as error:
        raise UsageError(f"VERL refuses the configuration: {one_line(error)}") from error
    log.debug("%s", said.getvalue())


def one_line(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def register() -> None:
    """Make Leyden's estimators known to VERL in this process, under one name; as often as one likes."""
    if SECTION not in core_algos.ADV_ESTIMATOR_REGISTRY:
        core_algos.register_adv_est(SECTION)(estimate)


def estimate(
    token_level_rewards: "Tensor", response_mask: "Tensor", index: Any, config: Any, **beside: Any
) -> "tuple[Tensor, Tensor]":
    """Return advantages and returns of a batch, `(rows, tokens)` each, in the form VERL asks an estimator for them.

    `index` holds the keys of the rows, and `config.leyden` says how they are compared. A call's tokens share its
    advantage, and its return, which is what VERL's critic learns to expect. Rows that VERL pads the batch with get 0
    and have no say; tokens that VERL masks get 0, and their rows keep their say.
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


def stored_credit(keys: list[str], *, values: bool) -> list[RowCredit]:
    """Return what VERL's queue holds of the rows `keys`; `values`: what its critic said of their states, too.

    VERL's value at a response's first token is of the state before it, as Leyden's critic gives it.
    """
    names = [CREDIT_FIELD, *(["values"] if values else [])]
    found: Any = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=names)
    credits: list[list[float]] = [row.tolist() for row in found[CREDIT_FIELD].unbind()]
    firsts = [row[0].item() for row in found["values"].unbind()] if values else [None] * len(keys)
    return [
        RowCredit(key=key, credit=credit, weight=weight, tokens=round(tokens), value=first)
        for key, (credit, weight, tokens), first in zip(keys, credits, firsts, strict=True)
    ]


def train(config: dict[str, Any], environment: dict[str, str], ray_address: str | None) -> None:
    """Start or join a Ray cluster, and run VERL's own trainer on it to its end; `environment` is all its processes'."""
    ray: Any = import_module("ray")
    main: Any = import_module("verl.trainer.main_ppo")
    constants: Any = import_module("verl.trainer.constants_ppo")
    whole = OmegaConf.create(config)
    runtime: dict[str, Any] = constants.get_ppo_ray_runtime_env(whole)
    variables = {**runtime["env_vars"], "TRANSFER_QUEUE_ENABLE": "1", **environment}
    given = {name: value for name, value in plain(whole.ray_kwargs.ray_init).items() if value is not None}
    where = given if ray_address is None else {"address": ray_address}
    ray.init(**where, runtime_env={**runtime, "env_vars": variables})
    door = Door(url=environment[URL], token=environment[TOKEN])
    try:
        with told_of(_waiting, lambda what: asyncio.run(_say(door, what))):
            main.run_ppo(whole, main.TaskRunnerV1)
    finally:
        ray.shutdown()


def _waiting() -> str | None:
    """What VERL's runs wait for in the cluster that this process has joined."""
    ray: Any = import_module("ray")
    util: Any = import_module("ray.util")
    groups: list[dict[str, Any]] = list(util.placement_group_table().values())
    own = [one for one in groups if one["state"] == "PENDING" and "verl_group" in one["name"]]
    return waiting([list(one["bundles"].values()) for one in own], ray.available_resources(), ray.cluster_resources())


async def _say(door: Door, what: str) -> None:
    driver = Driver(door)
    try:
        await driver.said(Said(what))
    finally:
        await driver.close()


def rows_of(prompts: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch of VERL's, column to value; what is said once for all of them is said in each."""
    return [
        {name: _of_row(column, number) for name, column in prompts.items() if name != "validate"}
        for number in range(len(prompts))
    ]


def _of_row(column: Any, number: int) -> Any:
    tensordict: Any = import_module("tensordict")
    if isinstance(column, torch.Tensor):
        return column[number]
    if isinstance(column, tensordict.NonTensorStack):
        one: Any = column[number]
        return one.data
    shared: Any = column
    return shared.data if isinstance(column, tensordict.NonTensorData) else shared


async def put_status(uid: str, partition: str, status: str, beside: Mapping[str, str] | None = None) -> None:
    """Say in VERL's queue how far a prompt is: running or finished; `beside` are further tags of it."""
    await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status, **(beside or {})})


def prompt_tags(partition: str) -> dict[str, dict[str, Any]]:
    """Return the tags of every prompt in VERL's queue."""
    queued: dict[str, dict[str, dict[str, Any]]] | None = tq.kv_list(partition)
    found = queued.get(partition, {}) if queued else {}
    return {uid: tag for uid, tag in found.items() if tag.get("is_prompt")}


def queue_parts() -> set[str]:
    """Return the names of the actors that VERL's queue consists of and that live: its controller and storage units."""
    ray: Any = import_module("ray")
    util: Any = import_module("ray.util")
    own = ("transfer_queue", ray.get_runtime_context().namespace)
    named: list[dict[str, str]] = util.list_named_actors(all_namespaces=True)
    return {one["name"] for one in named if one["namespace"] in own and one["name"].startswith("TransferQueue")}


def register_trainers(trainers: Any) -> None:
    """Have the run told of what VERL's trainers do; `trainers` is VERL's module of them.

    They stay VERL's own: what is registered in their place, by VERL's decorator, does what they do between its words.
    """
    told = {
        "sync": (ToldSync, trainers.PPOTrainerSync),
        "colocate_async": (ToldColocated, trainers.PPOTrainerColocateAsync),
        "separate_async": (ToldSeparate, trainers.PPOTrainerSeparateAsync),
    }
    registry: dict[str, Any] = import_module(f"{trainers.__name__}.trainer_base").TRAINER_REGISTRY
    for name, (ours, theirs) in told.items():
        if registry.pop(name) is not theirs:
            raise TrainingError(f"VERL's trainer {name} is not its own any more: another plug-in has replaced it")
        trainers.register_trainer(name)(type(f"Told{theirs.__name__}", (ours, theirs), {}))


async def put_rows(partition: str, rows: Sequence[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    """Put rows, each as key, fields and tag, into VERL's queue."""
    tensordicts: Any = import_module("verl.utils.tensordict_utils")
    keys, fields_, tags = (list(column) for column in zip(*rows, strict=True))
    await tq.async_kv_batch_put(
        keys=keys, fields=tensordicts.list_of_dict_to_tensordict(fields_), tags=tags, partition_id=partition
    )


register()
