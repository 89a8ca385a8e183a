"""Host check: rejects requests whose Host header does not name this server, against DNS rebinding.

In DNS rebinding, a web page points its own host name to the address of a server in a private network. The address may
also be on the loopback interface. The browser then sends the page's host name, which is not a name of this server.
"""

import socket
from collections.abc import Awaitable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.data.encoding.base_url import bare_host, is_address, is_loopback
from leyden.core.gateway.refusal import Refusal

CONTAINERS = ("host.docker.internal", "host.containers.internal")
"""Names that containers use for their host machine; no public name ends in `.internal`."""
MOST_SEEN = 256


class HostCheck:
    """ASGI application that checks the Host header of requests before it passes them to `app`.

    A server bound to a loopback address accepts the names and addresses of the loopback interface. Any other server
    accepts these, the machine's own name and every IP address, which DNS cannot redirect. Both also accept the address
    that they are bound to, the names in `CONTAINERS`, and the names in `allowed`.
    """

    def __init__(self, app: ASGIApp, bound: str, allowed: Collection[str] = ()) -> None:
        self._app = app
        self._is_public = not is_loopback(bound)
        own_names = {socket.gethostname(), socket.gethostname().partition(".")[0]} if self._is_public else set[str]()
        self._names = {bare_host(name) for name in (*own_names, *allowed, *CONTAINERS, bound)}
        self._accepted_headers: set[bytes] = set()
        """Cache of accepted Host headers."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer with status 421 for another host; accept a request without the header, as no browser sends one."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and value not in self._accepted_headers and not self._accepts(value):
                    return _refuse(value, send)
        return self._app(scope, receive, send)

    def _accepts(self, header: bytes) -> bool:
        host = _host(header.decode("latin-1"))
        if not (host in self._names or is_loopback(host) or (self._is_public and is_address(host))):
            return False
        if len(self._accepted_headers) < MOST_SEEN:
            self._accepted_headers.add(header)
        return True


def _host(header: str) -> str:
    """Return the host of `HOST[:PORT]`."""
    if header.startswith("["):
        return bare_host(header.partition("]")[0])
    return bare_host(header.partition(":")[0])


async def _refuse(header: bytes, send: Send) -> None:
    host = _host(header.decode("latin-1"))[:253]
    refusal = Refusal(
        421,
        f"This server does not answer requests for the host {host!r}; to allow it, start the server with "
        "--allow-host NAME",
    )
    body = refusal.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": body})
