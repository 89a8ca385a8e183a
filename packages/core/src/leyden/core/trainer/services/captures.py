"""Capture service: runs a gateway that records agents in production, until it is stopped."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leyden.core.data.identity import new_key
from leyden.core.data.production import ProductionSampling
from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.resources import LLM
from leyden.core.gateway.upstream.endpoints import open_upstream
from leyden.core.store.open import open_store
from leyden.core.trainer.serving.policy_servers import PolicyServers, served_by
from leyden.core.trainer.serving.provider import ProviderEndpoint
from leyden.core.trainer.serving.serving import embedded_policy

if TYPE_CHECKING:
    from leyden.core.gateway.calls.served_policy import ServedPolicy
    from leyden.core.gateway.shared.folder import SharedFolder
    from leyden.core.gateway.shared.listener import SharedListener
    from leyden.core.gateway.upstream.backend import UpstreamBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """Model or endpoint for the agents' calls, store for the records, and address of the gateway."""

    answering: str | LLM
    """Hugging Face model, or an endpoint."""
    servers: PolicyServers | None = None
    """Servers of the model; None: the embedded engine serves it."""
    store: str
    """URI of the store."""
    provider: ProviderEndpoint | None = None
    """Endpoint for requests besides model calls; None: an endpoint in `answering`, if there is one."""
    prompts: PromptEdits | None = None
    """Prompt edits of rollouts whose resources have none."""
    device: str = "cpu"
    """Device of the embedded engine."""
    token: str = field(repr=False)
    """Token that allows a process to begin rollouts."""
    sampling: ProductionSampling = field(default_factory=ProductionSampling)
    host: str = "127.0.0.1"
    port: int = 0
    allow_hosts: tuple[str, ...] = ()
    """Further host names of this machine that are accepted in the Host header of requests."""


async def serve_captures(plan: CapturePlan, started: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set; `started` receives the root URL once connections are accepted.

    Raises UsageError or PolicyError for a plan that cannot work, and GatewayError when the port is in use.
    """
    async with capture_gateway(plan, new_key()) as url:
        started(url)
        await stopped.wait()


@asynccontextmanager
async def capture_gateway(
    plan: CapturePlan,
    key: bytes,
    *,
    listener: "SharedListener | None" = None,
    shared: "SharedFolder | None" = None,
) -> AsyncGenerator[str]:
    """Context manager: runs the gateway in this process, and yields its root URL.

    `key` signs the tokens of attempts. `listener` and `shared` are the listener and the folder that several such
    processes of one gateway share.
    """
    from leyden.core.gateway.app import Gateway
    from leyden.core.gateway.http.server import GatewayServer
    from leyden.core.gateway.production.captures import PATH, capture_app

    async with AsyncExitStack() as closing:
        store = await open_store(plan.store)
        closing.push_async_callback(store.close)
        answering = await closing.enter_async_context(_answering(plan))
        token = plan.token.encode()
        captures = capture_app(
            store,
            key,
            authorize=lambda given: secrets.compare_digest(given.encode(), token),
            sampling=plan.sampling,
            shared=shared,
        )
        gateway = Gateway(
            store,
            answering,
            key,
            mounts={PATH: captures},
            provider=None if plan.provider is None else plan.provider.open(),
        )
        if plan.prompts is not None:
            gateway.edit_prompts(plan.prompts)
        if shared is not None:
            gateway.join_workers(shared)
            await closing.enter_async_context(_metrics_written(shared))
        server = GatewayServer(gateway.app, plan.host, plan.port, allowed_hosts=plan.allow_hosts, shared=listener)
        url = await server.start()
        closing.push_async_callback(server.stop)
        yield url


@asynccontextmanager
async def _metrics_written(shared: "SharedFolder") -> AsyncGenerator[None]:
    writing = asyncio.create_task(shared.keep_metrics_written())
    try:
        yield
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


@asynccontextmanager
async def _answering(plan: CapturePlan) -> "AsyncGenerator[ServedPolicy | UpstreamBackend]":
    by = plan.answering
    if isinstance(by, LLM):
        yield open_upstream(by)
    elif plan.servers is not None:
        async with served_by(plan.servers, by) as policy:
            yield policy
    else:
        async with embedded_policy(by, device=plan.device) as policy:
            yield policy
