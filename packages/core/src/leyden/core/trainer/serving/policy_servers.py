"""Policy servers: serves a policy with vLLM servers that the user runs, and whose weights do not change."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from leyden.core.data.encoding.base_url import check_base_url
from leyden.core.errors import EngineError, UsageError
from leyden.core.trainer.serving.external import model_info

if TYPE_CHECKING:
    from leyden.core.engine.vllm.replicas import ReplicaEngine, ReplicaServer
    from leyden.core.gateway.calls.served_policy import ServedPolicy

logger = logging.getLogger(__name__)

LOST_SECONDS = 30.0
"""Longest wait of a call while no server answers; then the call fails."""


class PolicyServers(msgspec.Struct, frozen=True, kw_only=True):
    """URLs of the servers of one policy, with or without `/v1`, their API key, and the policy's name on them."""

    urls: tuple[str, ...]
    key: str | None = None
    model: str | None = None
    """None: the only model of each server."""

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid URL, or one that is given twice."""
        for url in self.urls:
            check_base_url(url, "--engine-url")
        if len(set(self.roots)) < len(self.urls):
            raise UsageError("--engine-url names the same server twice: give the URL of each server once")

    @property
    def roots(self) -> list[str]:
        """Root URLs of the servers."""
        return [url.rstrip("/").removesuffix("/v1") for url in self.urls]


@asynccontextmanager
async def served_by(servers: PolicyServers, source: str) -> AsyncGenerator["ServedPolicy"]:
    """Context manager: serves the Hugging Face model `source`, which the servers have loaded.

    A server that does not answer is added once it does. Raises EngineError, with a message of one line, if no server
    answers, or if one of them cannot serve the policy.
    """
    from leyden.core.engine.vllm.replicas import ReplicaEngine, ReplicaServer
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

    given = [ReplicaServer(url=url, key=servers.key, model=servers.model) for url in servers.roots]
    codec = await asyncio.to_thread(HuggingFaceCodec, source)
    model = await asyncio.to_thread(model_info, source, await _context_length(given))
    engine = ReplicaEngine(model, wait_seconds=LOST_SECONDS, fixed=True)
    try:
        await _add_all(engine, given)
        yield ServedPolicy(name="policy", engine=engine, codec=codec)
    finally:
        await engine.close()


async def _add_all(engine: "ReplicaEngine", servers: "list[ReplicaServer]") -> None:
    from leyden.core.engine.vllm.client import ServerUnreachable

    for server in servers:
        try:
            await engine.add(server.url, key=server.key, model=server.model)
        except ServerUnreachable as error:
            logger.warning("A server is used as a replica once it answers: %s", error)
            engine.add_later(server)
    if not engine.replicas:
        raise EngineError("no server at --engine-url answers: start one of them first")


async def _context_length(servers: "list[ReplicaServer]") -> int | None:
    """Return the most tokens that every server takes; one position is left for scoring. None if no server names it."""
    from leyden.core.engine.vllm.client import ServerUnreachable, VllmClient

    lengths: list[int] = []
    for server in servers:
        client = VllmClient(server.url, key=server.key, pause_seconds=0)
        try:
            models = await client.models()
        except ServerUnreachable:
            continue
        finally:
            await client.close()
        lengths += [length for name, length in models.items() if length and server.model in (None, name)]
    return min(lengths) - 1 if lengths else None
