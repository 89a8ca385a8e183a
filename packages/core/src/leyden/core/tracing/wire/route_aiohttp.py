"""Wire routing for aiohttp: adds the innermost middleware of the session at `ClientSession._request`.

Every redirect and every retry of the agent's own middlewares passes this point. The agent's session keeps its
time-outs, hooks, cookies and traces. A routed call does not use the session's connector, proxy and TLS settings.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from yarl import URL

from leyden.core.tracing.wire import gateway_pool
from leyden.core.tracing.wire.routing_decision import (
    REASON_BYTES,
    Destination,
    OutgoingRequest,
    RequestStopped,
    bypass_routing,
    could_be_routed,
    decide,
)

WRAPPED = {"aiohttp": (("ClientSession", "_request"),)}
SESSION_OPTIONS = ("read_bufsize", "max_line_size", "max_field_size", "max_headers", "auto_decompress")
"""Options for reading a response. An older aiohttp without an option has no attribute of that name either."""
AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp adds by itself. The copy skips them, because the agent's request already has those it needs."""


def wrap(http: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of `ClientSession.<name>`."""

    # Not a coroutine function, so that aiohttp's warnings still name the agent's line.
    def _request(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("middlewares")
        middleware = _Middleware(http, original, self, kwargs)
        chain = (*(self._middlewares if given is None else given), middleware)
        return original(self, *args, **{**kwargs, "middlewares": chain})

    return _request


class _Middleware:
    """Middleware that sends each request to the gateway or to its original destination, or stops it."""

    def __init__(self, http: ModuleType, original: Callable[..., Any], session: Any, kwargs: dict[str, Any]) -> None:
        self._http, self._original, self._session = http, original, session
        self._options = {
            name: _option(session, kwargs, name) for name in SESSION_OPTIONS if hasattr(session, f"_{name}")
        }
        self._timeout = _timeout(http, session, kwargs)
        self._read_until_eof = kwargs.get("read_until_eof", True)

    async def __call__(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        if not could_be_routed(str(request.url)):
            return await handler(request)
        outgoing = _outgoing(request)
        try:
            destination = decide(outgoing)
            response = None if destination is None else await self._send_to_gateway(request, destination)
        except RequestStopped as stop:
            raise self._http.ClientConnectionError(str(stop)) from None
        if response is not None:
            return response
        with bypass_routing(outgoing):
            return await handler(request)

    async def _send_to_gateway(self, request: Any, destination: Destination) -> Any | None:
        """Return the gateway's response as if it came from the agent's provider. None: the provider must answer."""
        try:
            response = await self._send(request, destination)
        except (self._http.ClientConnectorError, self._http.ConnectionTimeoutError) as error:
            destination.fall_back(self._as_agent_error(error, request))
            return None
        if destination.accepts(response.status):
            response._real_url, response._url = request.original_url, request.url
            response._request_info, response._traces = request.request_info, request._traces
            response._session = self._session
            response._resolve_charset = self._session._resolve_charset
            return response
        try:
            body = await response.content.read(REASON_BYTES)
        except (self._http.ClientError, TimeoutError):  # only the reason is lost
            body = b""
        finally:
            response.close()
        destination.handle_refusal(response.status, body)
        return None

    async def _send(self, request: Any, destination: Destination) -> Any:
        connector = await gateway_pool.of_loop("aiohttp", destination.gateway_url, self._open)
        session = self._http.ClientSession(
            connector=connector,
            connector_owner=False,
            cookie_jar=self._http.DummyCookieJar(),
            response_class=request.response_class,
            version=request.version,
            timeout=self._timeout,
            skip_auto_headers=AUTOMATIC,
            **self._options,
        )
        headers = destination.headers(request.headers.items())
        unframed = [(k, v) for k, v in headers if k.lower() not in _framing(request)]
        try:
            return await self._original(
                session,
                request.method,
                URL(destination.url, encoded=True),
                headers=unframed,
                data=request.body or None,
                compress=request.compress,
                chunked=request.chunked or None,
                allow_redirects=False,
                read_until_eof=self._read_until_eof,
            )
        finally:
            session.detach()

    def _as_agent_error(self, error: Any, request: Any) -> Any:
        """Return `error` as a connection error to the agent's own provider."""
        if isinstance(error, self._http.ClientConnectorError):
            return self._http.ClientConnectorError(request.connection_key, error.os_error)
        return self._http.ConnectionTimeoutError(f"Connection timeout to host {request.url}")

    def _open(self) -> tuple[Any, Callable[[], Awaitable[None]]]:
        connector = self._http.TCPConnector(limit=0, keepalive_timeout=gateway_pool.KEEP_ALIVE_SECONDS)

        async def close() -> None:
            await connector.close()

        return connector, close


def _framing(request: Any) -> set[str]:
    """Return headers that the copied request sets anew, because it frames and compresses the body itself."""
    return {"content-length", "transfer-encoding", *(("content-encoding",) if request.compress else ())}


def _outgoing(request: Any) -> OutgoingRequest:
    payload = request.body
    body: Any = payload if isinstance(payload, bytes) else getattr(payload, "_value", None)
    known = bytes(body) if isinstance(body, bytes | bytearray) else None
    return OutgoingRequest(method=request.method, url=str(request.url), headers=request.headers, body=known)


def _option(session: Any, kwargs: dict[str, Any], name: str) -> Any:
    given = kwargs.get(name)
    return getattr(session, f"_{name}") if given is None else given


def _timeout(http: ModuleType, session: Any, kwargs: dict[str, Any]) -> Any:
    """Return the call's own time-outs, which may also be a number or None, or else the session's."""
    if "timeout" not in kwargs or kwargs["timeout"] is http.helpers.sentinel:
        return session._timeout
    given = kwargs["timeout"]
    return given if isinstance(given, http.ClientTimeout) else http.ClientTimeout(total=given)
