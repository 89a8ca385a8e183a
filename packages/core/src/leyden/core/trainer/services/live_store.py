"""Live store: serves a store object of this process to the other processes of a run."""

import asyncio
import secrets
import threading
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import quote

from leyden.core.masking import remember_secret
from leyden.core.store.base import LightningStore


def described(store: LightningStore) -> str:
    """Return how `config.yaml` names a store object."""
    return f"<{type(store).__module__}.{type(store).__qualname__}>"


@contextmanager
def served(store: LightningStore) -> Generator[str]:
    """Context manager: serves `store` on a free loopback port, from a thread; yields the URI with its token.

    The store stays open. A client of a server is not served again: the URI is that of its server.
    """
    from leyden.core.store.http.client import HttpStore

    if isinstance(store, HttpStore):
        url, token = store.address
        yield _with_token(url, token)
        return
    token = secrets.token_urlsafe(32)
    remember_secret(token)
    thread = _ServerThread(store, token)
    thread.start()
    try:
        yield _with_token(thread.url(), token)
    finally:
        thread.stop()


def _with_token(url: str, token: str) -> str:
    scheme, _, address = url.partition("://")
    return f"{scheme}://{quote(token, safe='')}@{address}"


class _ServerThread(threading.Thread):
    """Thread with an event loop on which the server runs."""

    def __init__(self, store: LightningStore, token: str) -> None:
        super().__init__(name="leyden store", daemon=True)
        self._store, self._token = store, token
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._has_started = threading.Event()
        self._url = ""
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Serve; this is the thread's body."""
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
            self._has_started.set()
        finally:
            self._loop.close()

    def url(self) -> str:
        """Return the server's URL once it accepts requests; raises the error that prevents it."""
        self._has_started.wait()
        if self._failure is not None:
            raise self._failure
        return self._url

    def stop(self) -> None:
        """Stop the server, and return when the thread has ended."""
        if self.is_alive() and self._failure is None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self.join()

    async def _serve(self) -> None:
        from leyden.core.gateway.http.server import GatewayServer
        from leyden.core.store.http.access import Access
        from leyden.core.store.http.server import store_app

        access = Access(self._token)
        app = store_app(self._store, authorize=access.is_trainer, agents=access.holder)
        server = GatewayServer(app, "127.0.0.1", 0)
        self._url = await server.start()
        self._has_started.set()
        try:
            await self._stopped.wait()
        finally:
            await server.stop()
