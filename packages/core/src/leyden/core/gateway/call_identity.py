"""Call identity: verifies the attempt token of a model call and finds its attempt, agent and parent span."""

import os
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from urllib.parse import unquote

import msgspec

from leyden.core.data import semconv
from leyden.core.data.identity import verify
from leyden.core.data.prompts.matching import CallerEdits
from leyden.core.data.rollout import FINISHED_ATTEMPT, FINISHED_ROLLOUT, Rollout
from leyden.core.data.route import ANSWERED_BY
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.gateway.refusal import Refusal
from leyden.core.store.base import LightningStore

API_KEY = b"x-api-key"
"""Header in which most clients of Anthropic send the API key."""
API_HEADERS = ("anthropic-version", "anthropic-beta")
"""Headers that select a version of Anthropic's API and its experimental features."""
RETRY_COUNT = b"x-stainless-retry-count"
"""Header in which the clients of OpenAI and Anthropic send the number of earlier tries of a request, from 0."""
_OTHER_HEADERS = frozenset({b"authorization", API_KEY, RETRY_COUNT, *(name.encode() for name in API_HEADERS)})
_ADVICE = (
    "This gateway answers only agents that Leyden runs, and captured runs: start the agent with `leyden dev`, `leyden "
    "train` or `leyden exec`, or set LEYDEN_CAPTURE, LEYDEN_GATEWAY_URL and LEYDEN_CAPTURE_TOKEN in its environment "
    "to capture its runs."
)
"""Advice for a client whose request has no valid attempt token."""
_TRACE = re.compile(r"[0-9a-f]{32}")
_API_VERSION = re.compile(r"[\w.,:; -]{1,2000}", re.ASCII)
_SPAN = re.compile(r"[0-9a-f]{16}")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a call: its rollout and attempt, its place in the trace, the agent, and the chosen policy."""

    rollout: Rollout
    attempt_id: str
    trace_id: str
    parent_id: str | None = None
    """Id of the span that the agent's framework opened for this call."""
    agent: str | None = None
    node: str | None = None
    policy: str | None = None
    """Name of the policy that a route chose for the call, else of the policy in the rollout's metadata."""
    api_headers: dict[str, str] = {}
    """Headers that select a version of the provider's API, for an upstream server."""
    edits: CallerEdits | None = None
    """Prompt edits of the caller's texts; None if none is replaced."""
    is_retry: bool = False
    """Whether the client's retry header marks the call as a retry of a call without a response."""

    def span(
        self, name: str, attributes: Attributes, started: float, ended: float, status: SpanStatus | None = None
    ) -> Span:
        """Return a span of the attempt at the place of this call in its trace; the store numbers it."""
        return Span(
            rollout_id=self.rollout.rollout_id,
            attempt_id=self.attempt_id,
            sequence_id=0,
            trace_id=self.trace_id,
            span_id=os.urandom(8).hex(),
            parent_id=self.parent_id,
            name=name,
            status=status or SpanStatus(code="ok"),
            attributes=attributes,
            start_time=started,
            end_time=ended,
        )


def private_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers that the gateway reads, percent-decoded.

    These are Leyden's private headers, `authorization`, `x-api-key`, the retry count and the versions of an API.
    """
    prefix = semconv.HEADER_PREFIX.encode()
    return {
        name.decode("latin-1"): unquote(value.decode("latin-1"))
        for name, value in headers
        if name.startswith(prefix) or name in _OTHER_HEADERS
    }


def verified(key: bytes, path_token: str | None, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return (rollout id, attempt id) of a request's attempt token.

    The token comes from the path, the attempt header, the bearer token or the API key, in this order. Raises Refusal
    with status 401 if there is no token or it is not valid.
    """
    token = path_token or headers.get(semconv.HEADER_ATTEMPT) or bearer(headers) or headers.get(API_KEY.decode())
    if not token:
        raise _unauthorized(f"You didn't provide an API key: this request names no attempt. {_ADVICE}")
    attempt = verify(key, token)
    if attempt is None:
        raise _unauthorized(f"Incorrect API key provided: it is not the token of an attempt. {_ADVICE}")
    return attempt


async def open_origin(store: LightningStore, rollout_id: str, attempt_id: str, headers: Mapping[str, str]) -> Origin:
    """Return the origin of a call; raises Refusal with status 403 if its attempt is unknown or has ended."""
    found = await store.find_attempt(rollout_id, attempt_id)
    if found is None:
        raise _attempt_closed(f"Attempt {attempt_id} of rollout {rollout_id} is not known to this store.")
    rollout, attempt = found
    if attempt.status in FINISHED_ATTEMPT:
        raise _attempt_closed(
            f"Attempt {attempt_id} has ended ({attempt.status}); its model calls are no longer answered."
        )
    if rollout.status in FINISHED_ROLLOUT:
        raise _attempt_closed(
            f"Rollout {rollout_id} has ended ({rollout.status}); its model calls are no longer answered."
        )
    trace_id, span_id = headers.get(semconv.HEADER_TRACE, ""), headers.get(semconv.HEADER_SPAN, "")
    return Origin(
        rollout=rollout,
        attempt_id=attempt_id,
        trace_id=trace_id if _TRACE.fullmatch(trace_id) else blake2b(attempt_id.encode(), digest_size=16).hexdigest(),
        parent_id=span_id if _SPAN.fullmatch(span_id) else None,
        agent=headers.get(semconv.HEADER_AGENT) or None,
        node=headers.get(semconv.HEADER_NODE) or None,
        policy=headers.get(semconv.HEADER_POLICY) or rollout.metadata.get(ANSWERED_BY),
        api_headers={name: headers[name] for name in API_HEADERS if _API_VERSION.fullmatch(headers.get(name, ""))},
        is_retry=headers.get(RETRY_COUNT.decode(), "0") not in ("", "0"),
    )


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of the `authorization` header; None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def attempt_tokens(path_token: str | None, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return all tokens in a request's path and headers, which no other server may get."""
    tokens = (path_token, headers.get(semconv.HEADER_ATTEMPT), bearer(headers))
    return tuple(token for token in tokens if token)


def _unauthorized(message: str) -> Refusal:
    return Refusal(401, message, code="invalid_api_key")


def _attempt_closed(message: str) -> Refusal:
    return Refusal(403, message, code="attempt_closed")
