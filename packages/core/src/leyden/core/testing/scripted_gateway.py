"""The real gateway on a real port, with a scripted engine and a store in memory, for tests of agents and clients."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import RolloutMode
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span
from leyden.core.engine.base import ModelInfo
from leyden.core.gateway.app import Gateway, GatewayLimits
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.production.captures import PATH, capture_app
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHandle:
    """An open attempt, with the token and base URL for a client's calls."""

    rollout_id: str
    attempt_id: str
    token: str
    base_url: str
    """Base URL for an OpenAI client without knowledge of attempts; it contains the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedGateway:
    """A running gateway with its store, engine and codec."""

    url: str
    key: bytes
    store: LightningStore
    engine: ScriptedEngine
    codec: ByteCodec

    async def open_attempt(self, mode: RolloutMode | None = "train", **metadata: object) -> AttemptHandle:
        """Start a rollout with its first attempt."""
        rollout = await self.store.start_rollout("a task", mode=mode, metadata=dict(metadata))
        token = mint(self.key, rollout.rollout_id, rollout.attempt.attempt_id)
        return AttemptHandle(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            token=token,
            base_url=f"{self.url}/a/{token}/v1",
        )

    async def calls(self, attempt: AttemptHandle) -> list[Span]:
        """Return the records of an attempt's model calls, in order."""
        spans = await self.store.query_spans(attempt.rollout_id, attempt.attempt_id)
        return [span for span in spans if semconv.CALL_ID in span.attributes]


@asynccontextmanager
async def scripted_gateway(
    answers: Script,
    *,
    store: LightningStore | None = None,
    sampling: Sampling | None = None,
    context_length: int = 4096,
    limits: GatewayLimits | None = None,
    capture_token: str | None = None,
) -> AsyncGenerator[ScriptedGateway]:
    """Serve `answers`, with ids of `ByteCodec`, until the block ends; with a `capture_token`, also take captures."""
    codec, key = ByteCodec(), new_key()
    engine = ScriptedEngine(
        answers, model=ModelInfo(name="scripted", context_length=context_length, vocab_size=VOCABULARY)
    )
    kept = store or MemoryStore()
    policy = ServedPolicy(name="policy", engine=engine, codec=codec, sampling=sampling or Sampling())
    mounts = {PATH: capture_app(kept, key, authorize=lambda given: given == capture_token)} if capture_token else {}
    server = GatewayServer(Gateway(kept, policy, key, mounts=mounts, limits=limits).app)
    url = await server.start()
    try:
        yield ScriptedGateway(url=url, key=key, store=kept, engine=engine, codec=codec)
    finally:
        await server.stop()
        await engine.close()
        if store is None:
            await kept.close()
