"""Address of a run: its URL, token and routes; and the start of the gateway at that URL."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from leyden.core.data.identity import mint, new_key
from leyden.core.data.route import Route
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access, new_machine
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.agents.runner_api import PATH, RunnerEndpoint
from leyden.core.trainer.agents.worker_demand import WorkerDemand

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from leyden.core.gateway.app import Backend, Gateway, GatewayLimits
    from leyden.core.gateway.http.metrics_page import Measure
    from leyden.core.gateway.upstream.relay import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAddress:
    """URL, token and signing key of a run. Agent processes receive the result of `machine`."""

    url: str
    """Root URL of gateway and store, without a trailing slash."""
    token: str
    """Token of the store."""
    key: bytes = b""
    """Key that signs attempt tokens. It stays in the process of the gateway."""
    routes: tuple[Route, ...] = ()
    """Routes of an agent's model calls."""
    demand: WorkerDemand | None = None
    """The workers that the run wants; None outside the run's own process."""

    def machine(self, kind: str = "worker") -> "RunAddress":
        """Return the address for the workers of one machine, with a token of its own and without the key."""
        return replace(self, token=new_machine(Access(self.token), kind), key=b"", demand=None)


@asynccontextmanager
async def open_gateway(
    store: LightningStore,
    policy: "Backend | None" = None,
    *,
    others: "Mapping[str, Backend] | None" = None,
    limits: "GatewayLimits | None" = None,
    mounts: "Mapping[str, ASGIApp] | None" = None,
    other_metrics: "Mapping[str, Measure] | None" = None,
    provider: "Upstream | None" = None,
    endpoint: RunnerEndpoint | None = None,
) -> AsyncGenerator[tuple[RunAddress, "Gateway"]]:
    """Context manager: starts the gateway on a free loopback port, with the store's server and further mounts.

    Yields the address and the gateway. Without a policy, the gateway waits for one (`Gateway.answer_with`). With
    `endpoint`, the runner endpoint, the run's configuration decides where the gateway listens, and remote runners get
    their offer.
    """
    from leyden.core.gateway.app import Gateway
    from leyden.core.gateway.http.server import GatewayServer
    from leyden.core.store.http.admission import RequestAdmission, ServerLimits
    from leyden.core.store.http.metrics import StoreMetrics
    from leyden.core.store.http.server import store_app

    key, token = new_key(), secrets.token_urlsafe(24)
    access = Access(token)
    counted = StoreMetrics(RequestAdmission(ServerLimits()))
    stores = store_app(
        store,
        authorize=access.is_trainer,
        agents=access.holder,
        metrics=counted,
        trusted=False,
        attempt_token=partial(mint, key),
    )
    demand: WorkerDemand | None = None
    runner_mounts: dict[str, ASGIApp] = {}
    worker_metrics: dict[str, Measure] = {}
    if endpoint is not None:
        demand = endpoint.demand(store, counted.workers)
        runner_mounts[PATH] = endpoint.app(partial(new_machine, access), demand)
        worker_metrics["workers"] = demand.measure
    gateway = Gateway(
        store,
        policy,
        key,
        others=others,
        mounts={"/store": stores, **(mounts or {}), **runner_mounts},
        other_metrics={"store": partial(counted.collect, store), **worker_metrics, **(other_metrics or {})},
        provider=provider,
        limits=limits,
    )
    placement = RunnerPlacement() if endpoint is None else endpoint.placement
    server = GatewayServer(gateway.app, placement.host, placement.port, allowed_hosts=placement.known_hosts)
    url = placement.url(await server.start())
    ended = False
    try:
        async with nullcontext() if demand is None else demand.watched():
            yield RunAddress(url=url, token=token, key=key, demand=demand), gateway
        ended = True
    finally:
        if endpoint is not None:
            endpoint.close(ended=ended)
        await server.stop()
