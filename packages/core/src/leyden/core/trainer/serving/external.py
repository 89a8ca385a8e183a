"""Serving for external loops: a store, and a gateway in front of the replicas that the loop serves."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from leyden.core.algorithm.external_loop import ExternalLoopAlgorithm, RunEndpoint
from leyden.core.engine.base import ModelInfo
from leyden.core.errors import UsageError
from leyden.core.store.outage import LONGEST_SECONDS
from leyden.core.trainer.agents.runner_api import RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.run_metrics import RunMetrics
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import open_gateway
from leyden.core.trainer.serving.external_replicas import ExternalReplicas
from leyden.core.trainer.serving.serving import Serving, provider_upstreams

if TYPE_CHECKING:
    pass

PATH = "/loop"
"""Path beside the gateway for requests of the loop's processes."""


@asynccontextmanager
async def serve_external(
    folder: RunFolder, config: RunConfig, algorithm: ExternalLoopAlgorithm
) -> AsyncGenerator[Serving]:
    """Context manager: starts store and gateway for a policy that `algorithm` serves; replicas are added later."""
    from leyden.core.engine.vllm.replicas import ReplicaEngine
    from leyden.core.gateway.app import GatewayLimits
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.calls.span_writer import SpanWriterLimits
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
    from leyden.core.gateway.http import gc_tuning

    source = _only(config)
    async with AsyncExitStack() as closing:
        codec = await asyncio.to_thread(HuggingFaceCodec, source)
        model = await asyncio.to_thread(model_info, source, algorithm.context_length)
        engine = ReplicaEngine(model)
        closing.push_async_callback(engine.close)
        policy = ServedPolicy(name=config.usual, engine=engine, codec=codec, sampling=config.sampling)
        store = await folder.store_location.open(patience=LONGEST_SECONDS)
        closing.push_async_callback(store.close)
        limits = GatewayLimits(records=SpanWriterLimits(within=config.record_within))
        external_replicas = ExternalReplicas(engine)
        closing.push_async_callback(external_replicas.close)
        other_metrics = {"run": RunMetrics(folder, config).measure}
        mounts = {PATH: external_replicas}
        opening = open_gateway(
            store,
            policy,
            others=provider_upstreams(config),
            limits=limits,
            mounts=mounts,
            other_metrics=other_metrics,
            provider=None if config.provider is None else config.provider.open(),
            endpoint=RunnerEndpoint(config),
        )
        address, gateway = await closing.enter_async_context(opening)
        # not the store's token, which workers and therefore agents have: the loop's token controls where the policy is
        # served
        external_replicas.endpoint = RunEndpoint(url=address.url + PATH, token=secrets.token_urlsafe(24))
        gc_tuning.tune()
        closing.callback(gc_tuning.restore)
        yield Serving(store, replace(address, routes=config.routes), {}, gateway, external_replicas=external_replicas)


def model_info(source: str, context_length: int | None) -> ModelInfo:
    """Return what the gateway needs of the model at `source`.

    The context length is the smaller of `context_length` and the model's own limit, in tokens. Raises PolicyError when
    there is no such model, UsageError when neither limit is known.
    """
    from leyden.core.policy.size import reading_config

    with reading_config(source) as config:
        text = config.get_text_config()
    own: int | None = getattr(text, "max_position_embeddings", None)
    limits = [limit for limit in (own and own - 1, context_length) if limit is not None]
    if not limits:
        raise UsageError(f"{source} has no context length in its configuration: set limits for prompts and answers")
    return ModelInfo(name=Path(source).name, context_length=min(limits), vocab_size=int(text.vocab_size))


def _only(config: RunConfig) -> str:
    """Return the single trained policy. Raises UsageError for further policies, or options without effect."""
    if len(config.policies) > 1 or config.frozen:
        others = ", ".join([*config.policies, *config.frozen])
        raise UsageError(f"{config.algorithm} trains and serves one policy, and this run has {others}")
    without_effect = {
        "deterministic": config.deterministic,
        "device": config.device != "cpu",
        "engine": config.engine != "embedded",
        "engine-log": config.engine_log,
        "patience": config.patience is not None,
        "threads": config.threads is not None,
        "update": config.update != "swap",
    }
    if given := [f"--{name}" for name, is_given in without_effect.items() if is_given]:
        raise UsageError(f"{config.algorithm} serves and trains the policy itself; remove {', '.join(given)}")
    return next(iter(config.policies.values()))
