"""Wire routing for httpx and httpx2: wraps a client's choice of transport, and the transports' send methods.

It works for clients made before or after it, whatever their base URL, HTTP/2 setting or proxy. It also works for custom
transports, even one that sends a request to another host than its client requested. The agent's request object keeps
its URL and headers.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from leyden.core.tracing.wire import gateway_pool
from leyden.core.tracing.wire.connection_pool import SingleConnectionPools
from leyden.core.tracing.wire.provider_hosts import is_of_sdk, record_client
from leyden.core.tracing.wire.routing_decision import (
    REASON_BYTES,
    Destination,
    OutgoingRequest,
    RequestStopped,
    bypass_routing,
    could_be_routed,
    decide,
    full_url,
    header_text,
    is_on,
)

PLACES = (
    ("Client", "_transport_for_url"),
    ("AsyncClient", "_transport_for_url"),
    ("HTTPTransport", "handle_request"),
    ("AsyncHTTPTransport", "handle_async_request"),
)
WRAPPED = {"httpx": PLACES, "httpx2": PLACES}


def wrap(http: ModuleType, name: str, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the wrapper of `name`, a method of a client or of a transport that opens connections."""
    if name != "_transport_for_url":
        return _sending(http, name, original)

    def _transport_for_url(self: Any, url: Any) -> Any:
        transport = original(self, url)
        if is_on() and is_of_sdk(self):
            record_client(str(self.base_url))
        return RoutedTransport(http, transport) if could_be_routed(str(url)) else transport

    return _transport_for_url


def _sending(http: ModuleType, name: str, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def handle_request(self: Any, request: Any) -> Any:
        if not could_be_routed(_url(request)):
            return original(self, request)
        return getattr(RoutedTransport(http, _Unrouted(self, original)), name)(request)

    return handle_request


class _Unrouted:
    """A transport with its original, unrouted send method."""

    def __init__(self, transport: Any, original: Callable[[Any, Any], Any]) -> None:
        self._transport, self._original = transport, original

    def handle_request(self, request: Any) -> Any:
        return self._original(self._transport, request)

    handle_async_request = handle_request


class RoutedTransport:
    """Transport that sends one possible model call to the gateway or to its original destination, or stops it."""

    def __init__(self, http: ModuleType, transport: Any) -> None:
        self._http = http
        self._transport = transport
        self._unreached = (http.ConnectError, http.ConnectTimeout)

    def handle_request(self, request: Any) -> Any:
        """Send `request` (httpx's synchronous transport interface)."""
        outgoing = _outgoing(request)
        destination = self._decide(request, outgoing)
        if destination is not None:
            pool = gateway_pool.of_process(
                self._http.__name__, destination.gateway_url, lambda: self._open(destination)
            )
            try:
                response = pool.handle_request(self._copy(request, destination))
            except self._unreached as error:
                destination.fall_back(error)
            else:
                if destination.accepts(response.status_code):
                    return response
                self._turned_away(request, destination, response.status_code, self._start_of(response))
        with bypass_routing(outgoing):
            return self._transport.handle_request(request)

    async def handle_async_request(self, request: Any) -> Any:
        """Send `request` (httpx's asynchronous transport interface)."""
        outgoing = _outgoing(request)
        destination = self._decide(request, outgoing)
        if destination is not None:
            pool = await self._async_pool(destination)
            try:
                response = await pool.handle_async_request(self._copy(request, destination))
            except self._unreached as error:
                destination.fall_back(error)
            else:
                if destination.accepts(response.status_code):
                    return response
                self._turned_away(request, destination, response.status_code, await self._start_of_async(response))
        with bypass_routing(outgoing):
            return await self._transport.handle_async_request(request)

    def _decide(self, request: Any, outgoing: OutgoingRequest) -> Destination | None:
        try:
            return decide(outgoing)
        except RequestStopped as stop:
            raise self._http.ConnectError(str(stop), request=request) from None

    def _turned_away(self, request: Any, destination: Destination, status: int, body: bytes) -> None:
        try:
            destination.handle_refusal(status, body)
        except RequestStopped as stop:
            raise self._http.ConnectError(str(stop), request=request) from None

    def _start_of(self, response: Any) -> bytes:
        """Read the start of a response that is not passed on, and close it. Read errors are ignored."""
        body = b""
        try:
            for piece in response.stream:
                body += piece
                if len(body) >= REASON_BYTES:
                    break
        except self._http.TransportError:
            pass
        finally:
            response.close()
        return body

    async def _start_of_async(self, response: Any) -> bytes:
        body = b""
        try:
            async for piece in response.stream:
                body += piece
                if len(body) >= REASON_BYTES:
                    break
        except self._http.TransportError:
            pass
        finally:
            await response.aclose()
        return body

    def _copy(self, request: Any, destination: Destination) -> Any:
        """Return the copy of `request` for the gateway.

        The body's stream is shared; the agent's own request stays unchanged.
        """
        own = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        headers = [(name.encode(), value.encode("latin-1")) for name, value in destination.headers(own)]
        extensions = {k: v for k, v in request.extensions.items() if k not in ("target", "sni_hostname")}
        return self._http.Request(
            request.method, destination.url, headers=headers, stream=request.stream, extensions=extensions
        )

    # --- Connections

    def _open(self, destination: Destination) -> tuple[Any, Callable[[], None]]:
        verify = self._verify(destination)
        pool = SingleConnectionPools(lambda: self._http.HTTPTransport(verify=verify, limits=self._limits()))
        return pool, pool.close

    async def _async_pool(self, destination: Destination) -> Any:
        def make() -> tuple[Any, Callable[[], Awaitable[None]]]:
            verify = self._verify(destination)
            pool = SingleConnectionPools(lambda: self._http.AsyncHTTPTransport(verify=verify, limits=self._limits()))
            return pool, pool.aclose

        found = await gateway_pool.of_loop(self._http.__name__, destination.gateway_url, make)
        if found is not None:
            return found
        unkept = self._http.Limits(max_keepalive_connections=0)
        return self._http.AsyncHTTPTransport(verify=self._verify(destination), limits=unkept)

    def _verify(self, destination: Destination) -> Any:
        """Return the TLS context for the gateway.

        Making one costs as much as a call, so a pool's connections share it.
        """
        return self._http.create_ssl_context(verify=gateway_pool.is_tls(destination.gateway_url))

    def _limits(self) -> Any:
        return self._http.Limits(
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=gateway_pool.KEEP_ALIVE_SECONDS,
        )


def _outgoing(request: Any) -> OutgoingRequest:
    body: bytes | None = getattr(request, "_content", None)
    return OutgoingRequest(method=request.method, url=_url(request), headers=request.headers, body=body)


def _url(request: Any) -> str:
    """Return the requested URL. An extension may set another target on the same server."""
    target = request.extensions.get("target")
    if target is None:
        return str(request.url)
    server = request.url.copy_with(raw_path=b"/", username=None, password=None, fragment=None)
    return full_url(str(server).rstrip("/"), header_text(target))
