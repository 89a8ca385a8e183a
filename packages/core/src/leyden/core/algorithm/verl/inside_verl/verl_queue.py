"""VERL's queue, TransferQueue: the rows and tags that VERL's trainer reads, and what it holds of them."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from leyden.core.algorithm.verl.advantages import RowCredit
from leyden.core.algorithm.verl.rows import CREDIT_FIELD

tq: Any = import_module("transfer_queue")  # by name, as VERL is

PARTITION = "train"
"""Where the rows are that are trained."""


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


async def put_rows(partition: str, rows: Sequence[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    """Put rows, each as key, fields and tag, into VERL's queue."""
    tensordicts: Any = import_module("verl.utils.tensordict_utils")
    keys, fields_, tags = (list(column) for column in zip(*rows, strict=True))
    await tq.async_kv_batch_put(
        keys=keys, fields=tensordicts.list_of_dict_to_tensordict(fields_), tags=tags, partition_id=partition
    )


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
