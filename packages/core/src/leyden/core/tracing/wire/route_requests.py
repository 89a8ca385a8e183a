"""Wire routing for requests: wraps `Session.get_adapter` and `HTTPAdapter.send`.

The first wrapper covers adapters of any kind that users mount. The second covers code that uses an adapter directly,
and sessions that find their adapter in another way. The agent's request and response keep the request's URL and
headers.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from leyden.core.tracing.wire import gateway_pool
from leyden.core.tracing.wire.routing_decision import (
    REASON_BYTES,
    Destination,
    OutgoingRequest,
    RequestStopped,
    bypass_routing,
    could_be_routed,
    decide,
    header_text,
)

WRAPPED = {"requests": (("Session", "get_adapter"), ("adapters.HTTPAdapter", "send"))}
_Proxy: Any = wrapt.ObjectProxy

POOL_SIZE = 1000
"""Number of kept connections. As many are opened as there are calling threads."""


def wrap(http: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of `Session.get_adapter` or of `HTTPAdapter.send`."""

    def get_adapter(self: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
        adapter = original(self, url, *args, **kwargs)
        return RoutedAdapter(http, adapter) if could_be_routed(str(url)) else adapter

    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not could_be_routed(str(request.url)):
            return original(self, request, *args, **kwargs)
        arguments = {**dict(zip(("stream", "timeout", "verify", "cert", "proxies"), args, strict=False)), **kwargs}
        return _Call(http, self, request, arguments).send(lambda: original(self, request, **arguments))

    return send if name == "send" else get_adapter


class RoutedAdapter(_Proxy):
    """Proxy of the adapter that a session found, whose `send` may route the request."""

    def __init__(self, http: ModuleType, adapter: Any) -> None:
        _Proxy.__init__(self, adapter)
        self._self_http = http

    def send(self, request: Any, **arguments: Any) -> Any:
        """Send `request` to the gateway or to its original destination, or stop it."""
        adapter = self.__wrapped__
        return _Call(self._self_http, adapter, request, arguments).send(lambda: adapter.send(request, **arguments))


class _Call:
    """One request of the agent, with the adapter that would send it."""

    def __init__(self, http: ModuleType, adapter: Any, request: Any, arguments: dict[str, Any]) -> None:
        self._http, self._adapter, self._request = http, adapter, request
        self._send_options = {name: arguments[name] for name in ("stream", "timeout") if name in arguments}

    def send(self, to_provider: Callable[[], Any]) -> Any:
        outgoing = _outgoing(self._request)
        try:
            destination = decide(outgoing)
        except RequestStopped as stop:
            raise self._error(stop) from None
        if destination is not None:
            response = self._send_to_gateway(destination)
            if response is not None:
                return response
        with bypass_routing(outgoing):
            return to_provider()

    def _send_to_gateway(self, destination: Destination) -> Any | None:
        """Return the gateway's response as if it came from the agent's provider. None: the provider must answer."""
        pool = gateway_pool.of_process("requests", destination.gateway_url, self._open)
        try:
            response = self._with_retries(pool).send(
                self._copy(destination), verify=True, cert=None, proxies={}, **self._send_options
            )
        except self._http.exceptions.RequestException as error:
            error.request = self._request
            if not _is_unreached(error):
                raise
            destination.fall_back(error)
            return None
        if destination.accepts(response.status_code):
            response.url, response.request, response.connection = self._request.url, self._request, self._adapter
            return response
        body = _start_of(response)
        try:
            destination.handle_refusal(response.status_code, body)
        except RequestStopped as stop:
            raise self._error(stop) from None
        return None

    def _with_retries(self, pool: Any) -> Any:
        """Return the adapter to the gateway, with the retries of the agent's own adapter."""
        retries = getattr(self._adapter, "max_retries", None)
        if retries is None or retries.total in (0, False):
            return pool
        adapter = self._http.adapters.HTTPAdapter(max_retries=retries)
        adapter.poolmanager = pool.poolmanager
        return adapter

    def _copy(self, destination: Destination) -> Any:
        """Return the copy of the request for the gateway.

        The body is shared; the agent's own request stays unchanged.
        """
        copy = self._http.PreparedRequest()
        copy.method, copy.url, copy.body = self._request.method, destination.url, self._request.body
        own = [(header_text(name), header_text(value)) for name, value in self._request.headers.items()]
        copy.headers = self._http.structures.CaseInsensitiveDict(destination.headers(own))
        copy.hooks = {}
        return copy

    def _error(self, stop: RequestStopped) -> Exception:
        error: Exception = self._http.exceptions.ConnectionError(str(stop), request=self._request)
        return error

    def _open(self) -> tuple[Any, Callable[[], None]]:
        pool = self._http.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=POOL_SIZE)
        return pool, pool.close


def _outgoing(request: Any) -> OutgoingRequest:
    body = request.body
    if body is None or isinstance(body, str):
        body = (body or "").encode()
    return OutgoingRequest(
        method=request.method,
        url=str(request.url),
        headers=request.headers,
        body=body if isinstance(body, bytes) else None,
    )


def _is_unreached(error: Any) -> bool:
    """Return whether the connection failed before anything was sent."""
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError")


def _start_of(response: Any) -> bytes:
    """Read the start of a response that is not passed on, and close it. Read errors are ignored."""
    from urllib3.exceptions import HTTPError  # loaded with requests

    try:
        return response.raw.read(REASON_BYTES)
    except HTTPError:
        return b""
    finally:
        response.close()
