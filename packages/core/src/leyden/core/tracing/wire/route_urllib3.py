"""Wire routing for direct use of urllib3, as in botocore and many generated clients.

It wraps `HTTPConnectionPool.urlopen`, before a connection is taken from the pool. The provider's host need not be
reachable. The response comes from Leyden's own pool, with the agent's URL.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from leyden.core.tracing.wire import gateway_pool
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

WRAPPED = {"urllib3.connectionpool": (("HTTPConnectionPool", "urlopen"),)}

POOL_SIZE = 1000
"""Number of kept connections. As many are opened as there are calling threads."""


def wrap(library: ModuleType, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper of `HTTPConnectionPool.urlopen`."""

    def urlopen(
        self: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        target_url = full_url(f"{self.scheme}://{_host(self)}", url)
        if not could_be_routed(target_url):
            return original(self, method, url, body, headers, *args, **kwargs)
        return _Call(original, self, (method, url, body, headers, *args), kwargs).send(target_url)

    return urlopen


class _Call:
    """One request of the agent, with the pool that would send it."""

    def __init__(
        self,
        original: Callable[..., Any],
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        from urllib3 import exceptions  # loaded by now

        self._errors, self._original, self._pool = exceptions, original, pool
        self._args, self._kwargs, self._url = args, kwargs, args[1]
        given: Mapping[Any, Any] = (pool.headers if args[3] is None else args[3]) or {}
        self._headers = {header_text(name).lower(): header_text(value) for name, value in given.items()}

    def send(self, target_url: str) -> Any:
        method, _, body = self._args[:3]
        outgoing = OutgoingRequest(method, target_url, self._headers, repeatable(body))
        try:
            destination = decide(outgoing)
        except RequestStopped as stop:
            raise self._error(stop) from None
        if destination is not None:
            response = self._send_to_gateway(destination)
            if response is not None:
                return response
        with bypass_routing(outgoing):
            return self._original(self._pool, *self._args, **self._kwargs)

    def _send_to_gateway(self, destination: Destination) -> Any | None:
        """Return the gateway's response as if it came from the agent's provider. None: the provider must answer."""
        method, url, body, _, *more = self._args
        pools = gateway_pool.of_process("urllib3", destination.gateway_url, _open)
        pool = pools.connection_from_url(destination.gateway_url)
        headers = dict(destination.headers(self._headers.items()))
        path = destination.url.removeprefix(destination.gateway_url)
        options = {**self._kwargs, **dict(zip(("retries", "redirect", "assert_same_host"), more, strict=False))}
        options = {"timeout": self._pool.timeout, **options, "redirect": False}
        options["retries"] = self._pool.retries if options.get("retries") is None else options["retries"]
        try:
            with bypass_routing(OutgoingRequest(method, destination.url, {}, None)):
                response = self._original(pool, method, path, body, headers, **options)
        except (self._errors.MaxRetryError, self._errors.NewConnectionError, self._errors.ConnectTimeoutError) as error:
            destination.fall_back(self._as_agent_error(error))
            return None
        if destination.accepts(response.status):
            response._request_url = url  # the result of `geturl`; urllib3 1 has no public way to set it
            return response
        try:
            body = response.data if _is_read(response) else response.read(REASON_BYTES)
        except self._errors.HTTPError:  # only the reason is lost
            body = b""
        response.close()
        try:
            destination.handle_refusal(response.status, body)
        except RequestStopped as stop:
            raise self._error(stop) from None
        return None

    def _as_agent_error(self, error: Any) -> Exception:
        """Return `error` as the agent's own pool would have raised it."""
        if isinstance(error, self._errors.MaxRetryError):
            return self._errors.MaxRetryError(self._pool, self._url, error.reason)
        return error

    def _error(self, stop: RequestStopped) -> Exception:
        """Return the error of a pool that cannot connect.

        It is NewConnectionError, or MaxRetryError where retries are allowed.
        """
        refused = self._errors.NewConnectionError(self._pool, str(stop))
        given = self._args[4] if len(self._args) > 4 else self._kwargs.get("retries")
        retries = self._pool.retries if given is None else given
        if getattr(retries, "total", retries) is False:
            return refused
        return self._errors.MaxRetryError(self._pool, self._url, refused)


def _open() -> tuple[Any, Callable[[], None]]:
    from urllib3 import PoolManager

    pools = PoolManager(maxsize=POOL_SIZE)
    return pools, pools.clear


def _host(pool: Any) -> str:
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    return f"{host}:{pool.port}" if pool.port else host


def _is_read(response: Any) -> bool:
    """Return whether the pool has already read the body (`preload_content`)."""
    return getattr(response, "_body", None) is not None
