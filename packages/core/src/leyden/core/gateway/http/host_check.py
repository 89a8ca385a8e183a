"""`HostCheck`: lets an application answer only requests whose Host header names this server.

A web page that a browser has open may come to reach a server of the loopback or of a private network under the page's
own name (DNS rebinding). The browser then sends that name, which is none of this server's.
"""

import socket
from collections.abc import Awaitable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.data.encoding.base_url import bare_host, is_address, is_loopback
from leyden.core.gateway.refusal import Refusal

CONTAINERS = ("host.docker.internal", "host.containers.internal")
"""Names by which containers know the machine they run on; no public name ends in `.internal`."""
MOST_SEEN = 256


class HostCheck:
    """An ASGI application around another.

    On a loopback address it answers for the loopback's names and addresses; on others for the machine's own name and
    for every address, which no DNS server can turn. Beyond that it answers for the names in `allowed`.
    """

    def __init__(self, app: ASGIApp, bound: str, allowed: Collection[str] = ()) -> None:
        self._app = app
        self._anywhere = not is_loopback(bound)
        own = {socket.gethostname(), socket.gethostname().partition(".")[0]} if self._anywhere else set[str]()
        self._names = {bare_host(name) for name in (*own, *allowed, *CONTAINERS, bound)}
        self._seen: set[bytes] = set()
        """Headers that were found to be right."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer with 421 for another host. A request without the header comes from no browser."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and value not in self._seen and not self._answers(value):
                    return _refuse(value, send)
        return self._app(scope, receive, send)

    def _answers(self, header: bytes) -> bool:
        host = _host(header.decode("latin-1"))
        if not (host in self._names or is_loopback(host) or (self._anywhere and is_address(host))):
            return False
        if len(self._seen) < MOST_SEEN:
            self._seen.add(header)
        return True


def _host(header: str) -> str:
    """The host of `HOST[:PORT]`."""
    if header.startswith("["):
        return bare_host(header.partition("]")[0])
    return bare_host(header.partition(":")[0])


async def _refuse(header: bytes, send: Send) -> None:
    host = _host(header.decode("latin-1"))[:253]
    refusal = Refusal(
        421, f"This server does not answer for the host {host!r}; if it should, start it with --allow-host NAME"
    )
    body = refusal.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": body})
