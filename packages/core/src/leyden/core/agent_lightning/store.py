"""Stores of Agent Lightning 0.3 by their names there."""

import os
import secrets
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from leyden.core.agent_lightning.replaced import WithReplaced, lookup, refuse
from leyden.core.errors import UsageError
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.masking import remember_secret
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import BUDGET_BYTES, MemoryStore
from leyden.core.store.open import TOKEN

LightningStoreCapabilities: TypeAlias = Mapping[str, bool]
LightningStoreStatistics: TypeAlias = dict[str, Any]


class InMemoryLightningStore(MemoryStore):
    """Store in memory, for any number of threads.

    `thread_safe` has no effect, because it always is. `eviction_memory_threshold` is the largest number of bytes of
    spans, 2 GiB if not given; shares of the machine's memory are refused, as are the original's other options.
    """

    def __init__(
        self, *, thread_safe: bool = True, eviction_memory_threshold: int | None = None, **options: Any
    ) -> None:
        del thread_safe
        if options:
            refuse(f"InMemoryLightningStore({next(iter(options))}=)", "eviction_memory_threshold= limits its bytes")
        if isinstance(eviction_memory_threshold, float):
            refuse("eviction_memory_threshold as a share", "give the number of bytes")
        budget = BUDGET_BYTES if eviction_memory_threshold is None else eviction_memory_threshold
        super().__init__(budget=budget)


class LightningStoreServer(WithReplaced):
    """Serves `store` over HTTP, on the running event loop, from `start` to `stop`. Its methods are those of the store.

    A client needs the server's token, which is a part of `endpoint`. `port` 0 or None is any free port.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        *,
        token: str | None = None,
        **options: Any,
    ) -> None:
        if options:
            own = "leave it out; `leyden store` is a server in its own process, and its --help lists what it takes"
            refuse(f"LightningStoreServer({next(iter(options))}=)", own)
        self.store = store
        self.token = token or secrets.token_urlsafe(32)
        remember_secret(self.token)
        self._host = host or "127.0.0.1"
        access = Access(self.token)
        app = store_app(store, authorize=access.is_trainer, agents=access.holder)
        self._server = GatewayServer(app, self._host, port or 0)
        self._port: int | None = None

    @property
    def endpoint(self) -> str:
        """URL of the server with its token. Raises UsageError before `start`."""
        if self._port is None:
            raise UsageError("the server has no address yet: await start()")
        return f"http://{self.token}@{self._host}:{self._port}"

    async def start(self) -> None:
        """Accept requests. Raises GatewayError when the port is in use."""
        url = await self._server.start()
        self._port = urlsplit(url).port

    async def stop(self) -> None:
        """Stop the server; the store stays open."""
        await self._server.stop()
        self._port = None

    def __getattr__(self, name: str) -> Any:
        """Return a method of the store."""
        if name.startswith("_") or not hasattr(LightningStore, name):
            return super().__getattr__(name)
        return getattr(self.store, name)


class LightningStoreClient(HttpStore):
    """The store behind a server, at `http://TOKEN@host:port`, or without the token, which is then LEYDEN_STORE_TOKEN.

    `patience` is the time in seconds for which requests to an unreachable server are repeated; the original's delays
    and timeouts are refused.
    """

    def __init__(self, server_address: str, *, patience: float | None = None, **options: Any) -> None:
        if options:
            refuse(f"LightningStoreClient({next(iter(options))}=)", "patience= is how long requests are repeated")
        parts = urlsplit(server_address)
        token = unquote(parts.username or "") or os.environ.get(TOKEN, "")
        host = parts.netloc.rpartition("@")[2]
        if parts.scheme not in ("http", "https") or not host or not token:
            raise UsageError(f"LightningStoreClient needs http://TOKEN@host:port, or the token in {TOKEN}")
        remember_secret(token)
        super().__init__(f"{parts.scheme}://{host}", token, **({} if patience is None else {"patience": patience}))


__all__ = [
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
]

__getattr__ = lookup("store")
