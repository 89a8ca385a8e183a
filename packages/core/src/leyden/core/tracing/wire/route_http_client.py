"""Wire routing for `http.client`, on which `urllib` and many older SDKs are built.

A connection opens its socket when the first byte is sent, so a routed request leaves it closed. The request is sent on
a second connection, to the gateway, which the first one owns. Its response is an ordinary `HTTPResponse`.
"""

import errno
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast
from urllib.parse import urlsplit

from leyden.core.tracing.wire.gateway_pool import is_tls
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
    repeatable,
)
from leyden.core.tracing.wire.routing_table import FORWARDED

METHODS = ("request", "putrequest", "putheader", "endheaders", "send", "getresponse", "close")
WRAPPED = {"http.client": tuple(("HTTPConnection", name) for name in METHODS)}

_CALL, _GATEWAY_CONNECTION = "_leyden_call", "_leyden_line"
"""Attributes of a connection: its current routed request, and its connection to the gateway."""
_FORWARDED = FORWARDED | {"connection"}
"""`Connection` is included, because keep-alive concerns only the client and the server that it really talks to."""


class _Call:
    """One request of a connection that goes to the gateway."""

    def __init__(self, destination: Destination, gateway_connection: Any, repeat: Callable[[], None] | None) -> None:
        self.destination, self.gateway_connection = destination, gateway_connection
        self.repeat = repeat
        """Sends the whole request to the agent's provider. None where the request was not made in one call."""
        self.is_last = False
        """Whether the agent wants no further response over this connection."""


def wrap(http: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of `HTTPConnection.<name>`."""
    return {
        "request": _request,
        "putrequest": _putrequest,
        "putheader": _putheader,
        "endheaders": _endheaders,
        "send": _send,
        "getresponse": _getresponse,
        "close": _close,
    }[name](http, original)


def _request(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def request(self: Any, method: str, url: str, body: Any = None, headers: Any = None, **kwargs: Any) -> None:
        target_url: str = _url(self, url)
        headers = cast("Mapping[Any, Any]", {} if headers is None else headers)
        if not could_be_routed(target_url):
            return original(self, method, url, body, headers, **kwargs)
        outgoing = OutgoingRequest(method, target_url, _names(headers), repeatable(body))

        def to_provider() -> None:
            with bypass_routing(outgoing):
                original(self, method, url, body, headers, **kwargs)

        if not _begin(http, self, outgoing, to_provider):
            return to_provider()
        return original(self, method, url, body, headers, **kwargs)

    return request


def _putrequest(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def putrequest(
        self: Any, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False
    ) -> None:
        call = _call(self)
        if call is None:
            outgoing = OutgoingRequest(method, _url(self, url), {}, None)
            if not could_be_routed(outgoing.url) or not _begin(http, self, outgoing, None):
                return original(self, method, url, skip_host, skip_accept_encoding)
            call = cast("_Call", _call(self))
        target = urlsplit(call.destination.url)
        with bypass_routing(OutgoingRequest(method, call.destination.url, {}, None)):
            path = target._replace(scheme="", netloc="").geturl()
            original(call.gateway_connection, method, path, skip_host=True, skip_accept_encoding=skip_accept_encoding)
        for header, value in call.destination.headers([]):
            call.gateway_connection.putheader(header, value)
        return None

    return putrequest


def _putheader(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def putheader(self: Any, header: Any, *values: Any) -> None:
        call = _call(self)
        if call is None:
            return original(self, header, *values)
        name = header_text(header).lower()
        call.is_last = call.is_last or (name == "connection" and header_text(values[0]).lower() == "close")
        return original(call.gateway_connection, header, *values) if name in _FORWARDED else None

    return putheader


def _endheaders(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def endheaders(self: Any, *args: Any, **kwargs: Any) -> None:
        call = _call(self)
        original(self if call is None else call.gateway_connection, *args, **kwargs)

    return endheaders


def _send(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def send(self: Any, data: Any) -> None:
        call = _call(self)
        original(self if call is None else call.gateway_connection, data)

    return send


def _getresponse(http: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def getresponse(self: Any) -> Any:
        call: _Call | None = _fields(self).pop(_CALL, None)
        if call is None:
            return original(self)
        response = original(call.gateway_connection)
        if call.destination.accepts(response.status):
            if call.is_last and call.gateway_connection.sock is not None:
                call.gateway_connection.sock.close()  # as `urllib` closes its own socket; the response stays readable
                call.gateway_connection.sock = None
            return response
        try:
            body = response.read(REASON_BYTES)
        except (OSError, http.HTTPException):  # only the reason is lost
            body = b""
        call.gateway_connection.close()
        try:
            call.destination.handle_refusal(response.status, body)
        except RequestStopped as stop:
            raise _error(stop) from None
        assert call.repeat is not None, "only a request whose body is known can be sent to its provider instead"
        call.repeat()
        return original(self)

    return getresponse


def _close(http: Any, original: Callable[..., None]) -> Callable[..., None]:
    def close(self: Any) -> None:
        _fields(self).pop(_CALL, None)
        gateway_connection = _fields(self).get(_GATEWAY_CONNECTION)
        if gateway_connection is not None:
            original(gateway_connection)
        original(self)

    return close


def _begin(http: Any, connection: Any, outgoing: OutgoingRequest, repeat: Callable[[], None] | None) -> bool:
    """Return whether the request that begins on `connection` goes to the gateway. If so, its connection is open."""
    _fields(connection).pop(_CALL, None)  # left by an abandoned request
    try:
        destination = decide(outgoing)
    except RequestStopped as stop:
        raise _error(stop) from None
    if destination is None:
        return False
    gateway_connection = _gateway_connection(http, connection, destination.gateway_url)
    if gateway_connection.sock is None:
        try:
            gateway_connection.connect()
        except OSError as error:
            gateway_connection.close()
            destination.fall_back(error)
            return False
    _fields(connection)[_CALL] = _Call(destination, gateway_connection, repeat)
    return True


def _gateway_connection(http: Any, connection: Any, gateway_url: str) -> Any:
    """Return the connection to the gateway that `connection` owns."""
    gateway = urlsplit(gateway_url)
    gateway_connection: Any = _fields(connection).get(_GATEWAY_CONNECTION)
    if gateway_connection is not None and (gateway_connection.host, gateway_connection.port) == (
        gateway.hostname,
        gateway.port or gateway_connection.default_port,
    ):
        return gateway_connection
    if gateway_connection is not None:
        gateway_connection.close()
    kind = http.HTTPSConnection if is_tls(gateway_url) else http.HTTPConnection
    gateway_connection = _fields(connection)[_GATEWAY_CONNECTION] = kind(
        gateway.hostname, gateway.port, timeout=connection.timeout
    )
    return gateway_connection


def _call(connection: Any) -> _Call | None:
    return _fields(connection).get(_CALL)


def _fields(connection: Any) -> dict[str, Any]:
    return connection.__dict__


def _url(connection: Any, url: str) -> str:
    """Return the whole URL of a request.

    Through a proxy, `url` is already whole. In a tunnel, the provider is at the tunnel's end.
    """
    tunnel = connection._tunnel_host  # set by the public `set_tunnel`; there is no public way to read it
    host, port = (tunnel, connection._tunnel_port) if tunnel else (connection.host, connection.port)
    scheme = "https" if tunnel or connection.default_port == 443 else "http"
    return full_url(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", url)


def _names(headers: Mapping[Any, Any]) -> dict[str, str]:
    return {header_text(name).lower(): header_text(value) for name, value in headers.items()}


def _error(stop: RequestStopped) -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, str(stop))
