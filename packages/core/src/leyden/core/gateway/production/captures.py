"""Capture application: begins and ends the rollouts that record agents in production; it is mounted in the gateway.

The signing key stays in this process. A process in production gets only the token of its own attempt.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.production import (
    CAPTURE,
    COMPLETE,
    INCOMPLETE,
    PRODUCTION,
    SAMPLING,
    CaptureBegin,
    CaptureBegun,
    CaptureEnd,
    CaptureSpans,
    ProductionSampling,
    is_capture,
)
from leyden.core.data.rollout import FINISHED_ATTEMPT, Attempt, AttemptStatus, Rollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS, IllegalMove
from leyden.core.gateway.call_identity import bearer, private_headers, verified
from leyden.core.gateway.endpoint import Endpoint, unknown_path
from leyden.core.gateway.http.asgi import send_json, start_message
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.metrics import CONTENT_TYPE
from leyden.core.gateway.production.span_sampling import DROPPED, SpanSampler
from leyden.core.gateway.refusal import Refusal, invalid
from leyden.core.gateway.shared.folder import SharedFolder
from leyden.core.store.base import LightningStore
from leyden.core.store.http.admission import AgentLimits, RequestAdmission, ServerLimits, check_values, too_many
from leyden.core.store.http.long_work import WRITE_SECONDS
from leyden.core.store.http.refused import Refused
from leyden.core.store.provenance import without_call_records
from leyden.core.trajectory.assemble import last_reward

PATH = "/capture"
"""Path of the application below the gateway's root."""

MSGPACK = b"application/msgpack"
"""Content type of requests and responses, the same as that of the store's server."""

_log = logging.getLogger("leyden.gateway")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """Timeouts of a captured rollout, for example after its process has died, and limits on its requests."""

    unresponsive_seconds: float = 900.0
    """Time without a model call after which the attempt becomes `unresponsive`."""
    timeout_seconds: float = 24 * 3600.0
    body: BodyLimits = field(default_factory=BodyLimits)
    agent: AgentLimits = field(default_factory=lambda: AgentLimits(max_requests=4))
    """Limits on the requests that one attempt may send at once."""


def capture_app(
    store: LightningStore,
    key: bytes,
    *,
    authorize: Callable[[str], bool],
    limits: CaptureLimits | None = None,
    sampling: ProductionSampling | None = None,
    shared: SharedFolder | None = None,
) -> ASGIApp:
    """Return the application with the paths `/begin`, `/spans`, `/end` and `/metrics`.

    Put it into the `mounts` of a `Gateway` at `PATH`, with the gateway's store and key. `authorize` checks the bearer
    token of each request to `/begin`. The other requests need the token of their attempt. `sampling` decides which
    rollouts keep their spans; by default, all do. `shared` is the folder of several worker processes.
    """
    sampler = SpanSampler(sampling or ProductionSampling(), shared=shared)
    capture = _Capture(store, key, authorize, limits or CaptureLimits(), sampler)
    return Starlette(
        routes=[
            Route("/begin", Endpoint(capture.begin, "POST", on_refused=_refused)),
            Route("/spans", Endpoint(capture.spans, "POST", on_refused=_refused)),
            Route("/end", Endpoint(capture.end, "POST", on_refused=_refused)),
            Route("/metrics", Endpoint(capture.metrics, "GET", on_refused=_refused)),
            Route("/{path:path}", Endpoint(unknown_path, on_refused=_refused)),
        ]
    )


class _Capture:
    def __init__(
        self,
        store: LightningStore,
        key: bytes,
        authorize: Callable[[str], bool],
        limits: CaptureLimits,
        sampler: SpanSampler,
    ) -> None:
        self._store, self._key, self._authorize, self._body = store, key, authorize, limits.body
        self._sampler = sampler
        self._admission = RequestAdmission(ServerLimits(agent=limits.agent))
        self._config = RolloutConfig(
            unresponsive_seconds=limits.unresponsive_seconds, timeout_seconds=limits.timeout_seconds
        )

    async def begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start a rollout with one attempt, and send its ids and its token.

        Raises Refusal with status 401 for a wrong capture token.
        """
        if not self._authorize(bearer(private_headers(scope["headers"])) or ""):
            raise Refusal(401, "Incorrect API key provided: it is not the capture token.", code="invalid_api_key")
        async with self._read_request(scope, receive, None, CaptureBegin) as request:
            pass
        metadata = {**request.metadata, **PRODUCTION}
        try:
            rollout = await self._store.start_rollout(request.task, config=self._config, metadata=metadata)
        except REFUSALS as error:
            raise invalid(str(error), "task") from error
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        begun = CaptureBegun(rollout_id=ids[0], attempt_id=ids[1], token=mint(self._key, *ids))
        answer = msgspec.msgpack.encode(begun)
        await send(start_message(200, MSGPACK, len(answer)))
        await send({"type": "http.response.body", "body": answer})

    async def spans(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store spans that the process of an attempt has recorded so far.

        Raises Refusal with status 409 if the attempt has ended.
        """
        rollout_id, attempt_id = verified(self._key, None, private_headers(scope["headers"]))
        async with self._read_request(scope, receive, (rollout_id, attempt_id), CaptureSpans) as request:
            _, attempt = await self._find_capture(rollout_id, attempt_id)
            if attempt.status in FINISHED_ATTEMPT:
                raise Refusal(409, f"Attempt {attempt_id} has ended ({attempt.status}).", code="attempt_closed")
            try:
                await self._store_spans(rollout_id, attempt_id, request.spans)
            except REFUSALS as error:
                raise invalid(str(error), "spans") from error
        await send_json(send, 200, b"{}")

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the spans of an attempt's notes, such as rewards, and end the attempt.

        A repeated request changes nothing. Raises Refusal with status 409 if the attempt ended in another way.
        """
        rollout_id, attempt_id = verified(self._key, None, private_headers(scope["headers"]))
        async with self._read_request(scope, receive, (rollout_id, attempt_id), CaptureEnd) as request:
            _, attempt = await self._find_capture(rollout_id, attempt_id)
            if attempt.status in FINISHED_ATTEMPT:
                if CAPTURE not in attempt.metadata:
                    raise Refusal(409, f"Attempt {attempt_id} has ended ({attempt.status}).", code="attempt_closed")
                return await send_json(send, 200, b"{}")  # a repeated request
            try:
                await self._end(rollout_id, attempt_id, request)
            except IllegalMove as error:
                raise Refusal(409, str(error), code="attempt_closed") from error
            except REFUSALS as error:
                raise invalid(str(error), "notes") from error
        await send_json(send, 200, b"{}")

    @asynccontextmanager
    async def _read_request(
        self, scope: Scope, receive: Receive, attempt: tuple[str, str] | None, kind: type[T]
    ) -> AsyncGenerator[T]:
        """Read and decode the body of a request as a `kind`; the block processes it within the limits of requests.

        `attempt` is (rollout id, attempt id), or None for a request to `/begin`. Raises Refusal with status 413 or 429
        if the request exceeds a limit.
        """
        limits = self._admission.limits
        max_values = limits.max_values if attempt is None else limits.agent.max_values

        def read() -> T:
            check_values([body], max_values)
            request = _decoded(body, kind)
            spans = _span_count(request)
            if spans > limits.agent.max_spans:
                raise too_many(str(spans), limits.agent.max_spans, "spans")
            admitted.charge(WRITE_SECONDS * spans)
            return request

        try:
            async with self._admission.admit(attempt) as admitted:
                body = await read_body(scope, receive, self._body)
                async with admitted.turn(len(body)):
                    yield await admitted.do(len(body), read)
        except Refused as refused:
            code = "request_too_large" if refused.status == 413 else "rate_limit_exceeded"
            raise Refusal(refused.status, str(refused), code=code, headers=refused.headers) from None

    async def _end(self, rollout_id: str, attempt_id: str, request: CaptureEnd) -> None:
        await self._store_spans(rollout_id, attempt_id, request.notes)
        status: AttemptStatus = "failed" if request.failed else "succeeded"
        metadata: dict[str, Any] = {CAPTURE: INCOMPLETE if request.incomplete else COMPLETE}
        if request.lost_spans:
            metadata["lost_spans"] = request.lost_spans
        if not self._sampler.sampling.keeps_all:
            metadata |= await self._sampling_decision(rollout_id, attempt_id)
        await self._store.update_attempt(rollout_id, attempt_id, status, metadata=metadata)
        if metadata.get(SAMPLING) == DROPPED:
            await self._store.drop_spans(rollout_id)

    async def _find_capture(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt]:
        """Return the rollout and the attempt of a capture; raises Refusal with status 403 for any other attempt."""
        found = await self._store.find_attempt(rollout_id, attempt_id)
        if found is None or not is_capture(found[0].metadata):
            raise Refusal(403, f"Attempt {attempt_id} was not started by this gateway.", code="attempt_closed")
        return found

    async def _store_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> None:
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 0}
        attempt_spans = [msgspec.structs.replace(span, **ids) for span in spans]
        await self._store.add_many_spans(await without_call_records(attempt_spans))

    async def _sampling_decision(self, rollout_id: str, attempt_id: str) -> dict[str, Any]:
        """Return metadata with the sampling decision; for dropped spans, also the reward and the number of spans."""
        reward, _ = last_reward((await self._store.query_spans(rollout_id, attempt_id, name=semconv.REWARD)).items)
        spans = (await self._store.query_spans(rollout_id, limit=0)).total
        decision = self._sampler.decide(rollout_id, reward, spans)
        return {SAMPLING: decision} | ({"reward": reward, "dropped_spans": spans} if decision == DROPPED else {})

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the counts of sampling decisions in Prometheus' text format."""
        answer = self._sampler.render()
        await send(start_message(200, CONTENT_TYPE.encode(), len(answer)))
        await send({"type": "http.response.body", "body": answer})


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"The request is invalid: {error}") from error


def _span_count(request: object) -> int:
    if isinstance(request, CaptureSpans):
        return len(request.spans)
    return len(request.notes) if isinstance(request, CaptureEnd) else 0


def _refused(code: str) -> None:
    _log.info("a capture in production was refused: %s", code)
