"""Serving where a run's loop serves the policy itself: a gateway over its replicas, and a door for its processes."""

import asyncio
import hmac
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.external_loop import Door
from leyden.core.engine.base import ModelInfo
from leyden.core.errors import TrainingError, UsageError
from leyden.core.trainer.agents.runner_api import Desk
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.run_metrics import RunMetrics
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.serving import Serving, open_gateway

if TYPE_CHECKING:
    from leyden.core.engine.vllm.replicas import ReplicaEngine

PATH = "/loop"
"""Where, beside the gateway, the processes of the loop are answered."""


class Elsewhere:
    """The replicas of a policy, and the application that the loop's processes speak with."""

    def __init__(self, engine: "ReplicaEngine") -> None:
        self._engine = engine
        self._app: ASGIApp | None = None
        self._pause: _Pause | None = None
        self.door = Door(url="", token="")

    async def serve_from(self, urls: Sequence[str], version: int) -> None:
        """Send calls to the servers at `urls` alone, which serve `version`; a pause is over with it.

        Raises EngineError, in one line, for one that cannot be reached or does not tell what is needed.
        """
        for url in self._engine.replicas.keys() - set(urls):
            await self._engine.remove(url)
        if self._pause is None and version != self._engine.version:
            async with self._engine.updating(version):
                pass
        for url in urls:
            if url not in self._engine.replicas:
                await self._engine.add(url)
        if self._pause is not None:
            pause, self._pause = self._pause, None
            await pause.end(version)

    async def pause(self, version: int) -> None:
        """Let nothing be drawn until `serve_from`: somebody gives the replicas the weights of `version`."""
        if self._pause is None:
            self._pause = _Pause(self._engine, version)
        await self._pause.began()

    async def close(self) -> None:
        """End a pause that nobody ended: the weights are what they were."""
        if self._pause is not None:
            await self._pause.give_up()

    def check(self) -> None:
        """Raise EngineError when every replica was lost: a loop brings none in the place of one that died."""
        self._engine.check()

    def open(self, app: ASGIApp) -> Door:
        """Let `app` answer those who have the token."""
        self._app = app
        return self.door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does, whoever has the token."""
        if self._app is None or scope["type"] != "http":
            await Response("nothing is here", status_code=404)(scope, receive, send)
            return
        given: bytes = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self.door.token}".encode()):
            await Response("a valid bearer token is wanted", status_code=401)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Pause:
    """A change of an engine's version that begins and ends in requests of their own."""

    def __init__(self, engine: "ReplicaEngine", version: int) -> None:
        self._engine, self._version = engine, version
        self._began, self._over = asyncio.Event(), asyncio.Event()
        self._held = asyncio.create_task(self._hold())

    async def began(self) -> None:
        """Return when nothing is drawn any more."""
        await self._began.wait()

    async def end(self, version: int) -> None:
        """Let calls be drawn, by `version`; raises TrainingError where another one was to come."""
        if version != self._version:
            raise TrainingError(f"version {self._version} was to be served, and {version} is")
        self._over.set()
        await self._held

    async def give_up(self) -> None:
        """Let calls be drawn by the version that there was."""
        self._held.cancel()
        await asyncio.wait([self._held])

    async def _hold(self) -> None:
        async with self._engine.updating(self._version):
            self._began.set()
            await self._over.wait()


@asynccontextmanager
async def serve_elsewhere(folder: RunFolder, config: RunConfig, algorithm: Algorithm) -> AsyncGenerator[Serving]:
    """Bring store and gateway up for a policy that `algorithm` serves; its replicas come later."""
    from leyden.core.engine.vllm.replicas import ReplicaEngine
    from leyden.core.gateway.app import GatewayLimits
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.calls.span_writer import KeeperLimits
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
    from leyden.core.gateway.http import gc_tuning
    from leyden.core.store.open import open_store

    source = _only(config)
    async with AsyncExitStack() as closing:
        codec = await asyncio.to_thread(HuggingFaceCodec, source)
        model = await asyncio.to_thread(model_info, source, algorithm.context_length)
        engine = ReplicaEngine(model)
        closing.push_async_callback(engine.close)
        policy = ServedPolicy(name=config.usual, engine=engine, codec=codec, sampling=config.sampling)
        store = await open_store(folder.store_uri)
        closing.push_async_callback(store.close)
        limits = GatewayLimits(records=KeeperLimits(within=config.record_within))
        elsewhere = Elsewhere(engine)
        closing.push_async_callback(elsewhere.close)
        beside = {"run": RunMetrics(folder, config).measure}
        mounts = {PATH: elsewhere}
        opened = open_gateway(store, policy, limits=limits, mounts=mounts, beside=beside, desk=Desk(config))
        address, gateway = await closing.enter_async_context(opened)
        # Not the store's token, which workers have, and so their agents: the loop says where the policy is served.
        elsewhere.door = Door(url=address.url + PATH, token=secrets.token_urlsafe(24))
        gc_tuning.calm()
        closing.callback(gc_tuning.restore)
        yield Serving(store, replace(address, routes=config.routes), {}, gateway, elsewhere=elsewhere)


def model_info(source: str, context_length: int | None) -> ModelInfo:
    """What the gateway must know of the model at `source`, of which calls of `context_length` tokens are served.

    Raises PolicyError when there is no such model, UsageError when nobody says how long a call may be.
    """
    from leyden.core.policy.size import reading_config

    with reading_config(source) as config:
        text = config.get_text_config()
    own: int | None = getattr(text, "max_position_embeddings", None)
    limits = [limit for limit in (own and own - 1, context_length) if limit is not None]
    if not limits:
        raise UsageError(f"{source} does not say how long its context is: limit prompts and answers")
    return ModelInfo(name=Path(source).name, context_length=min(limits), vocab_size=int(text.vocab_size))


def _only(config: RunConfig) -> str:
    """The one policy that is trained; raises UsageError where there are more, or others beside it."""
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
        raise UsageError(f"{config.algorithm} serves and trains the policy itself; leave out {', '.join(given)}")
    return next(iter(config.policies.values()))
