"""Serving of a run: store, engines and gateway, started and reachable."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from leyden.core.data.rollout import Task
from leyden.core.data.route import POLICY
from leyden.core.engine.base import AMPLIFIED, Engine, EnginePrecision, EngineRecord
from leyden.core.errors import EngineError, UsageError
from leyden.core.runner.user_code.loading import importing
from leyden.core.store.base import LightningStore
from leyden.core.store.outage import LONGEST_SECONDS
from leyden.core.trainer.agents.runner_api import RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.event_loop import run_both
from leyden.core.trainer.monitoring.run_metrics import RunMetrics
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trainer.serving.vllm import server_options, vllm_policy

if TYPE_CHECKING:
    from leyden.core.engine.embedded.engine import EmbeddedConfig
    from leyden.core.gateway.app import Gateway
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.codec import Codec
    from leyden.core.gateway.upstream.backend import UpstreamBackend
    from leyden.core.policy.model import PolicyModel
    from leyden.core.trainer.agents.local import AgentSide, CheckAgents
    from leyden.core.trainer.serving.external_replicas import ExternalReplicas

SERVED_GAP = {"float32": 1e-4, "bfloat16": 0.15, "int8": 0.3}
"""Log-probability difference that rounding explains, by the lower precision of trainer and engine: the largest of a
prompt in float32; in coarser precisions, the mean without the largest ones, see `prompt_gap`."""
AMPLIFIED_GAP = 1e-2
"""The same for the tokens at which a model amplifies rounding errors, at least one: the share `AMPLIFIED`."""
OWN_GAPS = {"bfloat16": 2.0, "int8": 4.0}
"""A model whose layers amplify rounding errors explains so many times the difference between its own forward passes in
bfloat16 and float32. While SmolLM2-135M was fine-tuned at a learning rate of 1e-4, the engine's difference was at most
1.5 times that one: 0.156 and 0.107 in step 10, 0.05 and 0.05 later."""


@dataclass(frozen=True, slots=True)
class Served:
    """Trained policy as it is served."""

    engine: Engine
    check_ids: list[int]
    """Fixed prompt of the served-weights check. It is scored before and after every update, so that a stale cache
    shows."""


class Serving:
    """Store and trained policies, by name, behind the gateway.

    With `drain`, new weights wait until no call is in flight; calls that arrive meanwhile wait for them. `frozen` are
    the engines of policies that are not trained.
    """

    def __init__(
        self,
        store: LightningStore,
        address: RunAddress,
        policies: Mapping[str, Served],
        gateway: "Gateway",
        *,
        drain: bool = False,
        frozen: Sequence[Engine] = (),
        external_replicas: "ExternalReplicas | None" = None,
        served: "Mapping[str, ServedPolicy] | None" = None,
    ) -> None:
        self.store, self.address, self.policies = store, address, policies
        self.served: Mapping[str, ServedPolicy] = served or {}
        """All policies as they are served, frozen ones included."""
        self.endpoint_key: str | None = None
        """Key of the endpoint of a run without a policy, if it was given in Python."""
        self._frozen = frozen
        self._gateway, self._drain = gateway, drain
        self.external_replicas = external_replicas
        """Replicas of an external loop that serve the policy; None: the engines of this run do."""

    async def serve(
        self, models: "Mapping[str, PolicyModel]", version: int, *, first: bool = False
    ) -> dict[str, float]:
        """Serve the models' weights as `version`; return the gap of each policy, see `check`.

        `first` means that these are the initial weights, which an engine of adapters still has.
        """
        updates: list[Callable[[], Awaitable[None]]] = []
        for name, model in models.items():
            served = self.policies[name]
            await served.engine.score(served.check_ids)
            if first and served.engine.takes_adapters:
                updates.append(partial(served.engine.begin_again, version))
            else:
                updates.append(await asyncio.to_thread(_update, served.engine, model, version))
        async with self._gateway.admission.closed() if self._drain else nullcontext():
            for update in updates:
                await update()
        return {name: await self.check(name, model) for name, model in models.items()}

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Context manager: engines with sleep mode free their GPU memory for the trainer inside the block."""
        async with AsyncExitStack() as sleeping:
            for engine in (*(served.engine for served in self.policies.values()), *self._frozen):
                await sleeping.enter_async_context(engine.asleep())
            yield

    async def flush(self) -> None:
        """Return when all records of answered calls are in the store."""
        await self._gateway.span_writer.flush()

    def check_engines(self) -> None:
        """Raise EngineError when an engine no longer answers."""
        for served in self.policies.values():
            served.engine.check()
        if self.external_replicas is not None:
            self.external_replicas.check()

    @property
    def context_length(self) -> int:
        """Maximum number of tokens, prompt and response together, that every policy can process; 0 without policies."""
        return min((served.engine.model.context_length for served in self.policies.values()), default=0)

    async def check(self, name: str, model: "PolicyModel") -> float:
        """Return the difference between served and trained log-probabilities of the fixed prompt.

        The trained ones are computed in float32, whatever precision the trainer uses, because the weights are compared.
        Raises EngineError when rounding cannot explain the difference. A coarser precision of the engine hides small
        differences. Where a coarser engine differs more than usual, the model's own rounding errors are measured, too.
        """
        from leyden.core.policy.logprobs import score

        policy = self.policies[name]
        precision, ids = policy.engine.precision, policy.check_ids
        served = await policy.engine.score(ids)
        trained = await asyncio.to_thread(score, model.in_precision("float32"), ids)
        gap, limit = prompt_gap(served, trained, precision), SERVED_GAP[precision]
        if precision == "float32" and _differs_at_few(served, trained):
            limit = AMPLIFIED_GAP
        elif precision in OWN_GAPS and gap > limit:
            rounded = await asyncio.to_thread(score, model.in_precision("bfloat16"), ids)
            limit = max(limit, OWN_GAPS[precision] * prompt_gap(rounded, trained, precision))
        if not gap <= limit:
            of = f"version {policy.engine.version}" + (f" of {name}" if len(self.policies) > 1 else "")
            raise EngineError(
                f"the engine does not serve the trained weights: log-probabilities of {of} differ by {gap:.2g} "
                f"(rounding explains at most {limit:.2g}); the run stops before it learns from them"
            )
        return gap


def prompt_gap(one: Sequence[float], other: Sequence[float], precision: EnginePrecision) -> float:
    """Return how far the log-probabilities of a prompt are apart, as `SERVED_GAP` limits it for an engine.

    In coarser precisions than float32, the mean leaves out the tokens at which a model may amplify rounding errors. The
    result is not finite if one log-probability is not.
    """
    apart = np.sort(np.abs(np.subtract(one, other)))
    if precision == "float32" or not np.isfinite(apart[-1]):
        return float(apart[-1])
    return float(np.mean(apart[: max(1, len(apart) - _amplified(len(apart)))]))


def _amplified(tokens: int) -> int:
    """Return at how many tokens of a prompt a model may amplify rounding errors."""
    return max(1, int(AMPLIFIED * tokens))


def _differs_at_few(served: Sequence[float], trained: Sequence[float]) -> bool:
    """Whether log-probabilities in float32 differ by more than usual rounding at few tokens alone."""
    usual = np.abs(np.subtract(served, trained)) <= SERVED_GAP["float32"]
    return bool(np.sum(~usual) <= _amplified(len(usual)))


@asynccontextmanager
async def serve_policies(
    folder: RunFolder, config: RunConfig, example: Task, agents: "AgentSide"
) -> "AsyncGenerator[tuple[Serving, CheckAgents]]":
    """Context manager: starts store and gateway, and loads the policies while the agent processes start.

    Yields the serving side and the check of the agent side. On exit everything is closed, the agents first.
    """
    from leyden.core.gateway.app import GatewayLimits
    from leyden.core.gateway.calls.span_writer import SpanWriterLimits
    from leyden.core.gateway.http import gc_tuning

    async with AsyncExitStack() as closing:
        record = closing.enter_context(_EngineLog(folder.engine_log)) if config.engine_log else None
        engines = await closing.enter_async_context(AsyncExitStack())
        store = await folder.store_location.open(patience=LONGEST_SECONDS)
        closing.push_async_callback(store.close)
        limits = GatewayLimits(records=SpanWriterLimits(within=config.record_within))
        other_metrics = {"run": RunMetrics(folder, config).measure}
        opening = open_gateway(
            store,
            limits=limits,
            other_metrics=other_metrics,
            provider=None if config.provider is None else config.provider.open(),
            endpoint=RunnerEndpoint(config),
        )
        address, gateway = await closing.enter_async_context(opening)
        address = replace(address, routes=config.routes)
        starting = closing.enter_async_context(agents(address))
        served, check_agents = await run_both(_serve_all(engines, folder, config, record), starting)
        gateway.answer_with(served[config.usual], {**served, **provider_upstreams(config)})
        gc_tuning.tune()
        closing.callback(gc_tuning.restore)
        serving = Serving(
            store,
            address,
            {name: Served(served[name].engine, _check_ids(served[name].codec, example)) for name in config.policies},
            gateway,
            drain=config.update == "drain",
            frozen=[served[name].engine for name in config.frozen],
            served=served,
        )
        yield serving, check_agents


@asynccontextmanager
async def serve_endpoint(
    folder: RunFolder, config: RunConfig, agents: "AgentSide", key: str | None = None
) -> "AsyncGenerator[tuple[Serving, CheckAgents]]":
    """Context manager: starts store and gateway, in front of the endpoint of a run without a policy, and the agents.

    `key` is the endpoint's key if it was given in Python. Yields the serving side and the check of the agent side.
    """
    from leyden.core.gateway.app import GatewayLimits
    from leyden.core.gateway.calls.span_writer import SpanWriterLimits

    if config.endpoint is None:
        raise UsageError(f"{config.algorithm} trains no policy, and needs an --endpoint that answers the agent")
    async with AsyncExitStack() as closing:
        store = await folder.store_location.open(patience=LONGEST_SECONDS)
        closing.push_async_callback(store.close)
        served: dict[str, ServedPolicy] = {}
        if (source := config.endpoint.policy) is not None:
            serving_policy = embedded_policy(source, device=config.device, config=engine_config(config))
            policy = await closing.enter_async_context(serving_policy)
            served[POLICY] = replace(policy, name=POLICY, trained=False, follows_agents=True)
        opening = open_gateway(
            store,
            served[POLICY] if served else config.endpoint.open(key),
            others=provider_upstreams(config),
            limits=GatewayLimits(records=SpanWriterLimits(within=config.record_within)),
            other_metrics={"run": RunMetrics(folder, config).measure},
            provider=None if config.provider is None else config.provider.open(),
            endpoint=RunnerEndpoint(config),
        )
        address, gateway = await closing.enter_async_context(opening)
        address = replace(address, routes=config.routes)
        check_agents = await closing.enter_async_context(agents(address))
        serving = Serving(store, address, {}, gateway, served=served)
        serving.endpoint_key = key
        yield serving, check_agents


def provider_upstreams(config: RunConfig) -> "dict[str, UpstreamBackend]":
    """Return the providers' models that routes name, as upstreams; their keys are in this process alone."""
    if not config.providers:
        return {}
    from leyden.core.gateway.upstream.provider import ProviderUpstream

    return {name: ProviderUpstream(given) for name, given in config.providers.items()}


async def _serve_all(
    engines: AsyncExitStack, folder: RunFolder, config: RunConfig, record: "_EngineLog | None"
) -> "dict[str, ServedPolicy]":
    """Load the policies of a run one after the other, and serve them until `engines` is closed."""
    from leyden.core.gateway.calls.seeds import CallSeeds

    decoding = engine_config(config)
    call_seeds = CallSeeds(config.seed, folder.store_location.prefix) if config.deterministic else None
    served: dict[str, ServedPolicy] = {}
    for name, source in {**config.policies, **config.frozen}.items():
        trained = name in config.policies
        if config.engine == "vllm":
            log, options = folder.path / f"vllm-{name}.log", server_options(config, trained=trained)
            serving = vllm_policy(source, options, device=config.device, log=log, on_finish=record)
        else:
            serving = embedded_policy(source, device=config.device, config=decoding, on_finish=record)
        policy = await engines.enter_async_context(serving)
        served[name] = replace(policy, name=name, sampling=config.sampling, trained=trained, call_seeds=call_seeds)
    return served


@asynccontextmanager
async def embedded_policy(
    source: str,
    *,
    device: str = "cpu",
    config: "EmbeddedConfig | None" = None,
    on_finish: Callable[[EngineRecord], None] | None = None,
    version: int = 0,
) -> AsyncGenerator["ServedPolicy"]:
    """Context manager: loads a Hugging Face model and serves it with an embedded engine, as this version of a policy.

    Raises PolicyError, with a message of one line, for a source that cannot be loaded or has no chat template.
    """
    policy = await asyncio.to_thread(_load_policy, source, device, config, on_finish, version)
    try:
        await policy.engine.start()
        yield policy
    finally:
        await policy.engine.close()


def _load_policy(
    source: str,
    device: str,
    config: "EmbeddedConfig | None",
    on_finish: Callable[[EngineRecord], None] | None,
    version: int,
) -> "ServedPolicy":
    """Import the serving modules and load a model. This takes seconds and would block an event loop."""
    with importing():
        from leyden.core.engine.embedded.engine import EmbeddedEngine
        from leyden.core.engine.embedded.weights import load_model
        from leyden.core.gateway.calls.served_policy import ServedPolicy
        from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

        _hide_loading_bars()
        codec = HuggingFaceCodec(source)
        model = load_model(source, device)  # the engine keeps a copy, and this one is freed
    engine = EmbeddedEngine(
        model, name=Path(source).name, version=version, config=config, on_finish=on_finish, tokenizer=source
    )
    return ServedPolicy(name="policy", engine=engine, codec=codec)


def _hide_loading_bars() -> None:
    """Disable the progress bars of transformers, which would overwrite Leyden's own."""
    transformers_logging: Any = import_module("transformers.utils.logging")
    transformers_logging.disable_progress_bar()


def _update(engine: Engine, model: "PolicyModel", version: int) -> Callable[[], Awaitable[None]]:
    """Return the function that sends `model` to its engine. Merging adapters into a large model takes seconds."""
    if model.adapters is not None and engine.takes_adapters:
        return partial(engine.update_adapters, model.adapters.save, version)
    return partial(engine.update_weights, model.weights(), version)


def _check_ids(codec: "Codec", example: Task) -> list[int]:
    text = msgspec.json.encode(example).decode()
    return codec.encode([{"role": "user", "content": text}])[:256]


class _EngineLog:
    """Writer of the engine's own record of every call, as JSON Lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def __call__(self, record: EngineRecord) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def __enter__(self) -> "_EngineLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def engine_config(config: "RunConfig") -> "EmbeddedConfig":
    """Return the engine's configuration for this run.

    A deterministic run decodes one sequence at a time and caches no prefixes. The number of rows of a matrix product,
    and the position in the prompt where it starts, decide how each row is rounded.
    """
    from leyden.core.engine.embedded.engine import EmbeddedConfig

    how = EmbeddedConfig(threads=config.threads, seed=config.seed, precision=config.engine_precision)
    if not config.deterministic:
        return how
    return msgspec.structs.replace(how, threads=1, max_batch=1, prefix_cache_tokens=0, batch_wait_seconds=0.0)
