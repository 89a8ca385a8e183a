"""vLLM serving: serves a policy of a run with a vLLM server beside the trainer."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from leyden.core.engine.base import EngineRecord
from leyden.core.engine.vllm.options import VllmOptions
from leyden.core.errors import UsageError
from leyden.core.policy.options import LoraOptions
from leyden.core.trainer.config import RunConfig

if TYPE_CHECKING:
    from leyden.core.gateway.calls.served_policy import ServedPolicy


@asynccontextmanager
async def vllm_policy(
    source: str,
    options: VllmOptions,
    *,
    device: str = "cpu",
    log: Path | None = None,
    on_finish: Callable[[EngineRecord], None] | None = None,
) -> AsyncGenerator["ServedPolicy"]:
    """Context manager: serves a Hugging Face model with vLLM; the server's output goes to `log`.

    Raises UsageError, with a message of one line, if vLLM is not installed or cannot serve the source.
    """
    from leyden.core.engine.vllm.local_engine import VllmEngine
    from leyden.core.engine.vllm.server import check_installed
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

    await asyncio.to_thread(check_installed, options)
    codec = await asyncio.to_thread(HuggingFaceCodec, source)
    engine = VllmEngine(source, options=options, device=device, log=log, on_finish=on_finish)
    try:
        await engine.start()
        yield ServedPolicy(name="policy", engine=engine, codec=codec)
    finally:
        await engine.close()


def server_options(config: RunConfig, *, trained: bool) -> VllmOptions:
    """Return the options of a run's server, with room for the adapters that the algorithm trains."""
    from leyden.core.algorithm.registry import make_algorithm  # a local import: `leyden dev` has no algorithm

    rank = _lora_rank(make_algorithm(config.algorithm, config.algorithm_config).settings()) if trained else 0
    if config.vllm.lora_rank and config.vllm.lora_rank < rank:
        raise UsageError(f"vllm.lora_rank is {config.vllm.lora_rank}, but adapters of rank {rank} are trained")
    return msgspec.structs.replace(config.vllm, lora_rank=max(rank, config.vllm.lora_rank) if trained else 0)


def _lora_rank(settings: object) -> int:
    """Return the largest adapter rank in an algorithm's settings; 0 if it trains whole weights."""
    if isinstance(settings, list):
        return max(map(_lora_rank, cast("list[object]", settings)), default=0)
    if not isinstance(settings, dict):
        return 0
    own = cast("dict[str, Any]", settings)
    lora = own.get("lora")
    rank = msgspec.convert(lora, LoraOptions).rank if isinstance(lora, Mapping) else 0
    return max([rank, *map(_lora_rank, own.values())])
