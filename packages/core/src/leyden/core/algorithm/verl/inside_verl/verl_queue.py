"""VERL's queue (TransferQueue): reads and writes the rows and tags that VERL's trainer uses."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from leyden.core.algorithm.verl.advantages import RowCredit
from leyden.core.algorithm.verl.rows import CREDIT_FIELD

tq: Any = import_module("transfer_queue")  # imported by name, as VERL is

PARTITION = "train"
"""Partition of the rows that are trained."""


def stored_credit(keys: list[str], *, values: bool) -> list[RowCredit]:
    """Return the credit of the rows `keys` in VERL's queue; with `values`, also the values of VERL's critic.

    VERL's value at a response's first token is that of the state before it, the same as with Leyden's critic.
    """
    names = [CREDIT_FIELD, *(["values"] if values else [])]
    found: Any = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=names)
    credits: list[list[float]] = [row.tolist() for row in found[CREDIT_FIELD].unbind()]
    firsts = [row[0].item() for row in found["values"].unbind()] if values else [None] * len(keys)
    return [
        RowCredit(key=key, credit=credit, weight=weight, tokens=round(tokens), value=first)
        for key, (credit, weight, tokens), first in zip(keys, credits, firsts, strict=True)
    ]


def rows_of(prompts: Any) -> list[dict[str, Any]]:
    """Return the rows of a VERL batch, as column to value; values shared by the whole batch are in every row."""
    return [
        {name: _row_value(column, number) for name, column in prompts.items() if name != "validate"}
        for number in range(len(prompts))
    ]


def _row_value(column: Any, number: int) -> Any:
    tensordict: Any = import_module("tensordict")
    if isinstance(column, torch.Tensor):
        return column[number]
    if isinstance(column, tensordict.NonTensorStack):
        item: Any = column[number]
        return item.data
    shared: Any = column
    return shared.data if isinstance(column, tensordict.NonTensorData) else shared


async def put_rows(partition: str, rows: Sequence[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    """Put rows, each as (key, fields, tag), into VERL's queue."""
    tensordicts: Any = import_module("verl.utils.tensordict_utils")
    keys, fields_, tags = (list(column) for column in zip(*rows, strict=True))
    await tq.async_kv_batch_put(
        keys=keys, fields=tensordicts.list_of_dict_to_tensordict(fields_), tags=tags, partition_id=partition
    )


async def put_status(uid: str, partition: str, status: str, extra_tags: Mapping[str, str] | None = None) -> None:
    """Set a prompt's status in VERL's queue: running or finished; `extra_tags` holds further tags."""
    await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status, **(extra_tags or {})})


def prompt_tags(partition: str) -> dict[str, dict[str, Any]]:
    """Return the tags of every prompt in VERL's queue, by uid."""
    queued: dict[str, dict[str, dict[str, Any]]] | None = tq.kv_list(partition)
    found = queued.get(partition, {}) if queued else {}
    return {uid: tag for uid, tag in found.items() if tag.get("is_prompt")}


def queue_parts() -> set[str]:
    """Return the names of the live actors of VERL's queue: its controller and storage units."""
    ray: Any = import_module("ray")
    util: Any = import_module("ray.util")
    own = ("transfer_queue", ray.get_runtime_context().namespace)
    actors: list[dict[str, str]] = util.list_named_actors(all_namespaces=True)
    return {
        actor["name"] for actor in actors if actor["namespace"] in own and actor["name"].startswith("TransferQueue")
    }
