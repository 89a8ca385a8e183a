"""External replicas: forwards calls to the replicas of an external loop, and serves the loop's application."""

import asyncio
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.algorithm.external_loop import RunEndpoint
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from leyden.core.engine.vllm.replicas import ReplicaEngine


class ExternalReplicas:
    """Replicas of a policy, and the ASGI application for the processes of the external loop."""

    def __init__(self, engine: "ReplicaEngine") -> None:
        self._engine = engine
        self._app: ASGIApp | None = None
        self._pause: _Pause | None = None
        self.endpoint = RunEndpoint(url="", token="")

    async def serve_from(self, urls: Sequence[str], version: int) -> None:
        """Send calls only to the servers at `urls`, which serve `version`; ends a pause.

        Raises EngineError, with a message of one line, for a server that cannot be reached or lacks required data.
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
        """Stop model calls until `serve_from`: the loop is giving the replicas the weights of `version`."""
        if self._pause is None:
            self._pause = _Pause(self._engine, version)
        await self._pause.began()

    async def close(self) -> None:
        """End a pause that is still on; the weights are then unchanged."""
        if self._pause is not None:
            await self._pause.give_up()

    def check(self) -> None:
        """Raise EngineError when all replicas are lost: a loop does not replace a replica that died."""
        self._engine.check()

    def open(self, app: ASGIApp) -> RunEndpoint:
        """Answer requests with the token by `app`; return the listener's URL and token."""
        self._app = app
        return self.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward requests that have the token to the application; answer 404 without an application, else 401."""
        if self._app is None or scope["type"] != "http":
            await Response("nothing is served here", status_code=404)(scope, receive, send)
            return
        given: bytes = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self.endpoint.token}".encode()):
            await Response("a valid bearer token is needed", status_code=401)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Pause:
    """Version change of an engine that begins in one request and ends in another."""

    def __init__(self, engine: "ReplicaEngine", version: int) -> None:
        self._engine, self._version = engine, version
        self._began, self._over = asyncio.Event(), asyncio.Event()
        self._held = asyncio.create_task(self._hold())

    async def began(self) -> None:
        """Return when no model call runs any more."""
        await self._began.wait()

    async def end(self, version: int) -> None:
        """Resume model calls, with `version`; raises TrainingError if another version was announced."""
        if version != self._version:
            raise TrainingError(f"version {version} is served instead of version {self._version}")
        self._over.set()
        await self._held

    async def give_up(self) -> None:
        """Resume model calls with the previous version."""
        self._held.cancel()
        await asyncio.wait([self._held])

    async def _hold(self) -> None:
        async with self._engine.updating(self._version):
            self._began.set()
            await self._over.wait()
