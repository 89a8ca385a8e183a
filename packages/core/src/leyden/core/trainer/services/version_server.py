"""Version server: serves one version of a run's policy to any client of OpenAI or Anthropic, and records nothing."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.errors import RunError
from leyden.core.gateway.call_identity import API_KEY, bearer, private_headers
from leyden.core.gateway.http.asgi import send_json
from leyden.core.gateway.refusal import Refusal, openai_error
from leyden.core.policy.source import check_sources_of_run
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.run_folder.models import Models, load_version, source_of_configuration, written_policy
from leyden.core.trainer.run_folder.versions import ModelVersion
from leyden.core.trainer.run_folder.weights import weights_of
from leyden.core.trainer.serving.serving import embedded_policy

if TYPE_CHECKING:
    from leyden.core.gateway.calls.served_policy import ServedPolicy

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlan:
    """Version to serve, and where."""

    models: Models
    version: ModelVersion
    policy: str
    """Name of the policy among those of the run."""
    device: str = "cpu"
    """Device of the embedded engine."""
    key: str = field(repr=False)
    """API key that each request must have."""
    host: str = "127.0.0.1"
    port: int = 0
    allow_hosts: tuple[str, ...] = ()
    idle_seconds: float = 0.0
    """Time without a request after which the server ends; 0: never."""
    parent: int | None = None
    """Id of the process that started this one, and with which it ends; None: it does not depend on another."""


def plan_policy(models: Models, version: ModelVersion, policy: str | None) -> str:
    """Return the name of the policy to serve; raises RunError if there is none, if it is not clear, or is not kept."""
    names, run = [*models.config.policies], models.folder.path.name
    if not names:
        raise RunError(
            f"run {run!r} trained no policy: an endpoint answered its agent, and that can be called without Leyden"
        )
    chosen = policy or version.side or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise RunError(f"run {run!r} has several policies: choose one with --policy: {', '.join(names)}")
    if chosen not in names:
        raise RunError(f"run {run!r} has no policy {chosen!r}; it has {', '.join(names)}")
    if version.version:
        weights_of(models.file, version)
    return chosen


async def serve_version(plan: VersionPlan, started: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set, the parent ends, or no request came for long; `started` receives the root URL.

    Raises PolicyError or RunError for a version that cannot be loaded, and GatewayError when the port is in use.
    """
    if plan.parent is not None and os.getppid() != plan.parent:
        return
    async with AsyncExitStack() as closing:
        if plan.parent is not None:  # also while the policy is loaded, which may take minutes
            watching = asyncio.create_task(_set_when_orphaned(plan.parent, stopped))
            closing.callback(watching.cancel)
        serving = asyncio.create_task(_serve(plan, started))
        ending = asyncio.create_task(stopped.wait())
        closing.callback(ending.cancel)
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
        try:
            await serving
        except asyncio.CancelledError:
            if not stopped.is_set():
                raise


async def _serve(plan: VersionPlan, started: Callable[[str], None]) -> None:
    """Serve until this is cancelled, or no request came for long."""
    async with _served(plan) as policy, _server(plan, policy) as (url, requests):
        started(url)
        while not plan.idle_seconds or requests.idle_seconds <= plan.idle_seconds:
            await asyncio.sleep(POLL_SECONDS)


async def _set_when_orphaned(parent: int, stopped: asyncio.Event) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(POLL_SECONDS)
    stopped.set()


@asynccontextmanager
async def _served(plan: VersionPlan) -> AsyncGenerator["ServedPolicy"]:
    """Context manager: the version's policy in an embedded engine."""
    models, version = plan.models, plan.version
    source, exported = models.config.policies[plan.policy], written_policy(models, plan.policy)
    is_exported = version.version == models.kept and (exported / "config.json").exists()
    is_loaded = version.version == 0
    if is_exported and not Path(source).exists():  # a folder that was copied from another machine
        source, is_loaded = str(exported), True
    elif not is_loaded:
        source = source_of_configuration(models, plan.policy)
    check_sources_of_run([source])
    async with embedded_policy(source, device=plan.device) as policy:
        if not is_loaded:
            model = await asyncio.to_thread(load_version, models, version, plan.policy)
            await policy.engine.update_weights(model.weights(), version.version)
            del model
        yield replace(policy, name=version.label, trained=False, follows_agents=True)


@asynccontextmanager
async def _server(plan: VersionPlan, policy: "ServedPolicy") -> AsyncGenerator[tuple[str, "KeyCheck"]]:
    """Context manager: a gateway whose calls all belong to one attempt, of which no call is recorded."""
    from leyden.core.gateway.app import Gateway
    from leyden.core.gateway.http.server import GatewayServer

    key, store = new_key(), UnrecordedStore()
    rollout = await store.start_rollout({})
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    requests = KeyCheck(Gateway(store, policy, key).app, plan.key, token)
    server = GatewayServer(requests, plan.host, plan.port, allowed_hosts=plan.allow_hosts)
    url = await server.start()
    try:
        yield url, requests
    finally:
        await server.stop()
        await store.close()


class UnrecordedStore(MemoryStore):
    """A store that accepts spans and forgets them."""

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans as stored; none is kept."""
        return list(spans)


class KeyCheck:
    """Requires the server's API key for model calls, and passes them to a gateway with an attempt's token in its place.

    The key may be a bearer token or the header `x-api-key`, as clients of OpenAI and Anthropic send it.
    """

    def __init__(self, app: ASGIApp, key: str, attempt_token: str) -> None:
        self._app, self._key, self._token = app, key.encode(), attempt_token.encode()
        self._running = 0
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        return 0.0 if self._running else time.monotonic() - self._ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 401, unless the request has the key; `/healthz` needs none."""
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        given = private_headers(scope["headers"])
        key = bearer(given) or given.get(API_KEY.decode()) or ""
        if not secrets.compare_digest(key.encode(), self._key):
            refusal = Refusal(401, "Incorrect API key provided: see what the server printed.", code="invalid_api_key")
            await send_json(send, *openai_error(refusal))
            return
        own, prefix = (b"authorization", API_KEY), semconv.HEADER_PREFIX.encode()
        headers = [one for one in scope["headers"] if one[0] not in own and not one[0].startswith(prefix)]
        headers.append((semconv.HEADER_ATTEMPT.encode(), self._token))
        self._running += 1
        try:
            await self._app({**scope, "headers": headers}, receive, send)
        finally:
            self._running -= 1
            self._ended = time.monotonic()
