"""`StoreServer`: real HTTP for any number of stores, on a loopback port and a thread of its own.

For tests, most of which are shorter than a start of a server. The trainer has a server of its own.
"""

import socket
import threading
import time
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import Access
from leyden.core.store.http.admission import ServerLimits
from leyden.core.store.http.server import store_app

TOKEN = "a-token-for-tests"
"""The trainer's token that the server accepts."""
ACCESS = Access(TOKEN)
"""Creates the tokens of agents and machines."""


class StoreServer:
    """Use it as `with StoreServer() as server:` and add stores, which the caller must close."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {}
        config = uvicorn.Config(self._dispatch, interface="asgi3", lifespan="off", log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        # asyncio disables Nagle's algorithm, which would delay every answer by 40 ms, only on sockets with an explicit
        # protocol.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name="leyden test server")

    def __enter__(self) -> "StoreServer":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.002)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()

    def add(self, store: LightningStore, *, limits: ServerLimits | None = None) -> str:
        """Serve `store`, to agents and workers too; return its URL."""
        return self.add_app(store_app(store, authorize=accepts, agents=ACCESS.holder, limits=limits))

    def add_app(self, app: ASGIApp) -> str:
        """Serve any ASGI application; return its URL."""
        name = str(len(self._apps))
        self._apps[name] = app
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/{name}"

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, path = scope["path"].lstrip("/").partition("/")
        await self._apps[name]({**scope, "path": f"/{path}"}, receive, send)


def accepts(token: str) -> bool:
    """Whether `token` is the trainer's token for tests."""
    return ACCESS.is_trainer(token)


class LosesAnswers:
    """Runs every call, and closes the connection in the middle of the answer while `lose` is above 0."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.lose = 0
        """Number of next answers to lose."""
        self.calls = 0
        """Number of requests so far."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or lose the answer."""
        self.calls += 1
        lost = self.lose > 0
        self.lose -= 1

        async def answer(message: Message) -> None:
            if not lost or message["type"] == "http.response.start":
                await send(message)

        await self.app(scope, receive, answer)
