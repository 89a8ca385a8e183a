"""Routing decision for a possible model call: it goes to the gateway or to its original destination, or is stopped.

The routing of all HTTP libraries shares this module. A library passes its request as an `OutgoingRequest`.
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from leyden.core.data import semconv
from leyden.core.data.route import POLICY, PROVIDER, Route, first_fitting
from leyden.core.masking import mask_text
from leyden.core.tracing.context import (
    Caller,
    OpenAttempt,
    current_attempt,
    current_caller,
    is_left_over,
    is_outside,
)
from leyden.core.tracing.wire import provider_hosts
from leyden.core.tracing.wire.not_model_calls import is_allowed
from leyden.core.tracing.wire.request_body import is_model_request
from leyden.core.tracing.wire.request_path import normalized
from leyden.core.tracing.wire.routing_table import FORWARDED, ModelCall, deployment, model_call, web_socket
from leyden.core.tracing.wire.unsupported_clients import CALLED

log = logging.getLogger("leyden.routing")

WENT_TO_PROVIDER = "went to its provider"
"""Text of the log. Also the key in `OpenAttempt.extra` that is set when a call went on because the gateway failed."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")
"""Headers with which a request asks a server, such as Google's, to treat it as another method."""
REASON_BYTES = 16384
"""Largest part of an error response that is read for the log, in bytes."""
REASON_CHARACTERS = 300

_enabled = False
_fail_closed = False
_logged: set[tuple[str, str]] = set()
_bypassing: ContextVar[tuple[str, str, OpenAttempt | None] | None] = ContextVar("leyden_onward", default=None)
"""Method, address and attempt of the request on its way to its provider, for the library layers below."""


class RequestStopped(Exception):
    """This request is stopped. The agent receives the text as its library's own connection error."""


class _ModelField(msgspec.Struct):
    model: str | None = None


class _ErrorFields(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorFields


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request before it is sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    """Lookup must ignore the case of names."""
    body: bytes | None
    """None: it can be read only once."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The gateway's side of one model call."""

    request: OutgoingRequest
    call: ModelCall
    attempt: OpenAttempt
    policy: str

    @property
    def gateway_url(self) -> str:
        """The gateway's root URL."""
        return self.attempt.gateway_url

    @property
    def url(self) -> str:
        """URL to which the request is sent."""
        if _is_gateways(self.request.url, self.attempt):
            return self.request.url
        kept = [pair for pair in parse_qsl(urlsplit(self.request.url).query) if pair[0] in self.call.query]
        return f"{self.gateway_url}{self.call.gateway_path}" + (f"?{urlencode(kept)}" if kept else "")

    def headers(self, own: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers to send: those of `own` in `FORWARDED`, `Host`, and headers that identify the caller."""
        kept = [(name, value) for name, value in own if name.lower() in FORWARDED]
        return [*kept, ("Host", urlsplit(self.url).netloc), *self._identity()]

    def accepts(self, status: int) -> bool:
        """Return whether the gateway's response with `status` is passed to the agent. Called before its body is read.

        False for a redirect. Also False, in an attempt that fails open, for an error status of 400 or more. The library
        then reads up to `REASON_BYTES` of the body and calls `handle_refusal`.
        """
        redirect = status in REDIRECTS
        refused = self.attempt.fail_open and self.request.body is not None and status >= 400
        return not (redirect or refused)

    def handle_refusal(self, status: int, body: bytes) -> None:
        """Return where the agent's provider must answer instead. Raises RequestStopped where the call may not go there.

        The log contains the gateway's reason from `body`.
        """
        redirect = status in REDIRECTS
        if self.attempt.fail_open and self.request.body is not None:
            code, message = ("", "") if redirect else _refusal(body)
            reason = f"the gateway answered {status}" + (f": {message}" if message else "")
            _record_fallback(self.request.url, self.call, self.attempt, reason, f"{status} {code}")
            return
        raise _stop(self.request.url, self.call, "the gateway answered with a redirect")

    def fall_back(self, error: Exception) -> None:
        """Handle `error`, a failed connection to the gateway.

        Returns where the agent's provider must answer instead. Otherwise raises `error` again.
        """
        if not self.attempt.fail_open:
            raise error
        reason = f"the gateway cannot be reached ({type(error).__name__})"
        _record_fallback(self.request.url, self.call, self.attempt, reason)

    def _identity(self) -> list[tuple[str, str]]:
        caller = current_caller() or Caller()
        values = {
            semconv.HEADER_ATTEMPT: self.attempt.token,
            semconv.HEADER_AGENT: caller.agent,
            semconv.HEADER_NODE: caller.node,
            semconv.HEADER_SPAN: caller.span_id,
            semconv.HEADER_TRACE: caller.trace_id or self.attempt.trace_id,
            semconv.HEADER_POLICY: None if self.policy == POLICY else self.policy,
        }
        return [(name, quote(value, safe="")) for name, value in values.items() if value]


def set_routing(on: bool, *, fail_closed: bool = False) -> None:
    """Turn routing on or off for every library. While it is off, each wrapper calls the original."""
    global _enabled, _fail_closed
    _enabled, _fail_closed = on, fail_closed
    if not on:
        _logged.clear()
        provider_hosts.forget()


def is_on() -> bool:
    """Return whether routing is on."""
    return _enabled


def fails_closed() -> bool:
    """Return whether a model call without an attempt fails."""
    return _fail_closed


def could_be_routed(url: str) -> bool:
    """Return whether `decide` must be called for a request to `url`."""
    path = urlsplit(url).path
    return _enabled and ((model_call(path) or web_socket(path)) is not None or provider_hosts.is_provider(url))


def full_url(server: str, target: str) -> str:
    """Return the URL of a request for `target` that is sent to `server`, a root URL such as `https://host:443`.

    A target that is itself a URL is for a proxy, which forwards it. A provider's server is no proxy.
    """
    if target[:8].lower().startswith(("http://", "https://")):
        if not provider_hosts.is_provider(server):
            return target
        parts = urlsplit(target)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return f"{server}{'' if target.startswith('/') else '/'}{target}"


def decide(request: OutgoingRequest) -> Destination | None:
    """Return the gateway destination of `request`.

    None: its original destination. Raises RequestStopped when it is stopped.
    """
    attempt = current_attempt()
    call = _call(request, attempt) if _enabled else None
    if call is None:
        return None
    if attempt is None:
        return _without_attempt(request, call)
    attempt.extra[CALLED] = True
    if _bypasses_routing(request, attempt):
        return None
    if _is_gateways(request.url, attempt):
        if semconv.HEADER_ATTEMPT in request.headers:
            return None
        policy = _policy(request, [route for route in attempt.routes if route.to != PROVIDER])
    else:
        policy = _policy(request, attempt.routes)
        if policy == PROVIDER:
            return None
        if not attempt.fail_open:
            provider_hosts.record_call(request.url, attempt)
    if call.gateway_path is None:
        return _unsupported(request, call, attempt)
    return Destination(request, call, attempt, policy)


@contextmanager
def bypass_routing(request: OutgoingRequest) -> Generator[None]:
    """Exempt `request` from routing in all library layers inside the block."""
    token = _bypassing.set((request.method, _host_and_path(request.url), current_attempt()))
    try:
        yield
    finally:
        _bypassing.reset(token)


def repeatable(body: Any) -> bytes | None:
    """Return a body that can be sent twice, for `OutgoingRequest`. None for one that can be read only once."""
    if body is None or isinstance(body, str):
        return (body or "").encode()
    return bytes(cast("bytes", body)) if isinstance(body, bytes | bytearray | memoryview) else None


def header_text(value: Any) -> str:
    """Return a header's name or value as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _bypasses_routing(request: OutgoingRequest, attempt: OpenAttempt) -> bool:
    method, address, sent_for = _bypassing.get() or ("", "", None)
    return sent_for is attempt and method == request.method and address == _host_and_path(request.url)


def _call(request: OutgoingRequest, attempt: OpenAttempt | None) -> ModelCall | None:
    """Return the model call that `request` is. None where it is none.

    In a runner every request to a provider's host is a model call, unless `not_model_calls` lists it. In other
    processes, and in production capture, the path and the body decide.
    """
    headers, path = request.headers, urlsplit(request.url).path
    methods = {request.method.upper(), *_override_methods(headers)}
    upgrades = header_text(headers.get("upgrade", "")).lower() == "websocket"
    call = web_socket(path) if upgrades else model_call(path)
    if call is not None and call.methods.isdisjoint(methods):
        call = None
    encoding = header_text(headers.get("content-encoding", ""))
    if call is not None and (not call.names_model or is_model_request(request.body, encoding)):
        return call
    in_runner = (_fail_closed or is_left_over()) if attempt is None else not attempt.fail_open
    if not in_runner or not provider_hosts.is_provider(request.url):
        return None
    if call is None and (upgrades or not is_allowed(methods, path)):
        shown = mask_text(normalized(path))[:REASON_CHARACTERS]
        return ModelCall(f"{' '.join(sorted(methods))} {shown}", None, names_model=False, is_known=False)
    return call


def _override_methods(headers: Mapping[str, str]) -> list[str]:
    """Return the methods that `headers` ask a server to apply instead of the request's own."""
    return [header_text(method).strip().upper() for name in OVERRIDES if (method := headers.get(name))]


def _without_attempt(request: OutgoingRequest, call: ModelCall) -> None:
    if is_left_over():
        raise _stop(request.url, call, "the attempt that made this call is closed")
    if _fail_closed and not is_outside():
        raise _stop(request.url, call, "no attempt is open, and this process may not call a provider")


def _unsupported(request: OutgoingRequest, call: ModelCall, attempt: OpenAttempt) -> None:
    reason = f"the gateway does not support {call.suffix} calls"
    if not call.is_known:
        parts = urlsplit(request.url)
        route = f"host={(parts.hostname or '').lower()},path={mask_text(parts.path)[:REASON_CHARACTERS]},to={PROVIDER}"
        reason += f"; if this is not a model call, or if its provider must answer it, give the run the route {route}"
    if not attempt.fail_open:
        raise _stop(request.url, call, reason)
    _record_fallback(request.url, call, attempt, reason)


def _policy(request: OutgoingRequest, routes: Sequence[Route]) -> str:
    if not routes:
        return POLICY
    parts = urlsplit(request.url)
    caller = current_caller() or Caller()
    model = _model(request, parts.path) if any(route.reads_model for route in routes) else None
    host = (parts.hostname or "").lower()
    agent, node = caller.agent or "", caller.node or ""
    return first_fitting(routes, host=host, path=parts.path, model=model, agent=agent, node=node)


def _model(request: OutgoingRequest, path: str) -> str | None:
    """Return the model that the request names. None where it cannot be determined."""
    if request.body is None:
        return None
    try:
        named = msgspec.json.decode(request.body, type=_ModelField).model if request.body else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return named or deployment(path)


def _stop(url: str, call: ModelCall, reason: str) -> RequestStopped:
    _log_outcome(url, call, "was stopped", reason)
    return RequestStopped(f"model call stopped by Leyden: {reason}")


def _record_fallback(url: str, call: ModelCall, attempt: OpenAttempt, reason: str, kind: str | None = None) -> None:
    attempt.extra[WENT_TO_PROVIDER] = True
    _log_outcome(url, call, WENT_TO_PROVIDER, reason, kind)


def _log_outcome(url: str, call: ModelCall, outcome: str, reason: str, kind: str | None = None) -> None:
    """Log a call's outcome: as a warning for the first reason of its `kind` for its host, later as debug messages."""
    label = f"{urlsplit(url).hostname} ({call.suffix})"  # not the whole path, which may hold an attempt's token
    key = (label, reason if kind is None else kind)
    level = logging.DEBUG if key in _logged else logging.WARNING
    _logged.add(key)
    log.log(level, "A model call to %s %s: %s", label, outcome, reason)


def _refusal(body: bytes) -> tuple[str, str]:
    """Return the kind of refusal in an error body of the gateway, and its message as one short line."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", ""
    message = mask_text(" ".join(error.message.split()))
    shown = message if len(message) <= REASON_CHARACTERS else f"{message[:REASON_CHARACTERS]}…"
    return f"{error.code or error.type or ''} {error.param or ''}".strip(), shown


def _is_gateways(url: str, attempt: OpenAttempt) -> bool:
    return url.startswith(f"{attempt.gateway_url}/")


def _host_and_path(url: str) -> str:
    """Return the part of a URL that layered libraries write in the same way."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').lower()}{parts.path}"
