"""Forwarding: sends a request that is no model call, such as one for embeddings, to an upstream endpoint.

The attempt's token, Leyden's private headers and the credentials of the agent's client stay in the gateway. The
endpoint gets its own API key. The response reaches the agent as it arrives; no redirect is followed. Such a request is
not recorded.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

import aiohttp
from starlette.types import Scope, Send

from leyden.core.gateway.http.asgi import JSON, ClientWatch, start_message
from leyden.core.gateway.refusal import bad_gateway, invalid
from leyden.core.tracing.context import outside_attempt
from leyden.core.tracing.wire.not_model_calls import is_allowed

SENT_HEADERS = frozenset({"accept", "content-type", "idempotency-key", "openai-beta"})
"""Headers of the agent's request that the endpoint gets. A list of forbidden headers could miss a credential."""
RETURNED_HEADERS = frozenset({"content-disposition", "retry-after", "retry-after-ms", "x-should-retry"})
"""Headers of the endpoint's response that the agent gets, besides `content-type`."""
CREDENTIALS = frozenset({"access_token", "api-key", "api_key", "apikey", "key", "subscription-key", "token"})
"""Query parameters that the endpoint does not get, because they hold a key for the agent's own provider."""
METHODS = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
NEVER = frozenset({"load_lora_adapter", "unload_lora_adapter"})
"""Last segments of paths with which an agent would change the model of a vLLM server."""
_PLAIN = re.compile(r"[\w.~@!$&'()*+,=:-]+(?:/[\w.~@!$&'()*+,=:-]+)*", re.ASCII)
"""A path that every server reads in the same way."""
_MOST_LOGGED = 100

_log = logging.getLogger("leyden.gateway")
_logged: set[str] = set()


class ForwardTarget(Protocol):
    """Upstream endpoint that takes forwarded requests."""

    def open(
        self, method: str, path: str, *, headers: Mapping[str, str], data: bytes | None, rollout_id: str | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to a path below the base URL, with the endpoint's own key; a rollout stays on its replica."""
        ...

    def not_reached(self, error: BaseException) -> str:
        """Return the sentence for a request that found no endpoint."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A request in the form in which the endpoint gets it."""

    method: str
    path: str
    """Path below the endpoint's base URL, percent-encoded, with its query."""
    headers: Mapping[str, str]
    data: bytes | None


def is_forwardable(method: str, path: str) -> bool:
    """Whether a request to `path`, relative to the version, may be sent to an endpoint."""
    segments = path.split("/")
    plain = _PLAIN.fullmatch(path) is not None and not {".", ".."} & set(segments)
    return method in METHODS and plain and segments[-1].lower() not in NEVER


def forwarded(scope: Scope, path: str, body: bytes, tokens: Iterable[str]) -> ForwardedRequest:
    """Return the request to send for an agent's request to `path`, relative to the version.

    `tokens` are the attempt's tokens in the request. Headers and query parameters that contain one are left out. Raises
    Refusal with status 400 for a body or a path that contains one.
    """
    tokens = [token for token in tokens if token]
    if any(token.encode() in body for token in tokens) or _has_token(path, tokens):
        raise invalid("The request contains the token of this attempt, which no other server may get.")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    query = [
        (name, value)
        for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if name.lower() not in CREDENTIALS and not _has_token(name, tokens) and not _has_token(value, tokens)
    ]
    return ForwardedRequest(
        method=scope["method"],
        path="/" + quote(path, safe="/~@!$&'()*+,=:") + (f"?{urlencode(query)}" if query else ""),
        headers={
            name: value for name, value in headers.items() if name in SENT_HEADERS and not _has_token(value, tokens)
        },
        data=body or None,
    )


async def forward(
    endpoint: ForwardTarget,
    request: ForwardedRequest,
    watch: ClientWatch,
    send: Send,
    rollout_id: str | None = None,
) -> int:
    """Send a request to the endpoint and its response to the agent; return the response's status.

    Raises Refusal with status 502 if the endpoint cannot be reached or answers with a redirect. If the response breaks
    off, the agent's connection does so too.
    """
    _log_unrecorded(request)
    started = False
    try:
        with outside_attempt(), watch.cancelling():
            opened = endpoint.open(
                request.method, request.path, headers=request.headers, data=request.data, rollout_id=rollout_id
            )
            async with opened as answer:
                if 300 <= answer.status < 400:
                    raise bad_gateway(f"the upstream answered with a redirect ({answer.status})")
                more = {name: answer.headers[name] for name in RETURNED_HEADERS if _ascii(answer.headers.get(name))}
                kind = answer.headers.get("content-type")
                started = True
                await send(start_message(answer.status, kind.encode() if kind and _ascii(kind) else JSON, None, more))
                async for data in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return answer.status
    except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
        if started:
            raise BrokenOff from error
        raise bad_gateway(endpoint.not_reached(error)) from None


class BrokenOff(Exception):
    """The endpoint's response ended early, after a part of it was sent to the agent."""


def _has_token(value: str, tokens: Iterable[str]) -> bool:
    plain = unquote_to_bytes(value)
    return any(token in value or token.encode() in plain for token in tokens)


def _ascii(value: str | None) -> bool:
    return value is not None and value.isascii() and value.isprintable()


def _log_unrecorded(request: ForwardedRequest) -> None:
    """Log once for each path that a request which may be a model call is answered by the endpoint and not recorded."""
    path = f"/v1{request.path.partition('?')[0]}"
    if is_allowed([request.method], path) or path in _logged or len(_logged) >= _MOST_LOGGED:
        return
    _logged.add(path)
    _log.warning("%s %s is answered by the endpoint, and not recorded: it may be a model call", request.method, path)
