"""Weights from VERL's trainer to replicas in processes of their own, without a GPU, for tests: through a TCP store.

Loaded by VERL itself, as `rollout.checkpoint_engine.custom_backend_module`.
"""

import functools
import io
import socket
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

NAME = "tcp"
"""`rollout.checkpoint_engine.backend` in VERL's configuration."""
PATIENCE = timedelta(minutes=2)

# VERL is not among the packages that types are checked with.
_base: Any = import_module("verl.checkpoint_engine.base")
_fsdp: Any = import_module("verl.utils.fsdp_utils")
distributed: Any = torch.distributed
CheckpointEngine: Any = _base.CheckpointEngine


@_base.CheckpointEngineRegistry.register(NAME)
class TcpEngine(CheckpointEngine):
    """One end of an update; the first rank of the trainer holds the store."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        del bucket_size, is_master
        self._store: Any = None
        self._rank = 0

    def prepare(self) -> int:
        """Offer a port, in case that this becomes the first rank."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return int(listener.getsockname()[1])

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[int]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Number the processes, the trainer's before the replicas'."""

        def told(first: int, count: int) -> dict[str, list[Any]]:
            return {"rank": list(range(first, first + count)), "port": [metadata[0]] * count}

        return told(0, actor_wg_world_size), told(actor_wg_world_size, rollout_world_size)

    def init_process_group(self, rank: int, port: int) -> None:
        """Open the store, or find it."""
        self._rank = rank
        self._store = distributed.TCPStore(
            "127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=PATIENCE
        )

    def finalize(self) -> None:
        """Let the store go."""
        self._store = None

    async def send_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Every rank has to draw the weights from its shards; the first one sends them."""
        del global_steps
        whole = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        if self._rank == 0:
            packed = io.BytesIO()
            torch.save(whole, packed)
            self._store.set("weights", packed.getvalue())

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any]]:
        """Wait for the weights."""
        del global_steps
        packed = io.BytesIO(self._store.get("weights"))
        for name, tensor in torch.load(packed, weights_only=True).items():
            yield name, tensor


def _copy_what_is_kept() -> None:
    """Between the updates of a step VERL puts its weights aside on the CPU: on a CPU these would go on changing."""
    whole = _fsdp.fsdp2_sharded_save_to_cpu

    @functools.wraps(whole)
    def keep(model: Any) -> Any:
        shards, spec = whole(model)
        return {name: (shard.clone(), own) for name, (shard, own) in shards.items()}, spec

    _fsdp.fsdp2_sharded_save_to_cpu = keep


_copy_what_is_kept()
