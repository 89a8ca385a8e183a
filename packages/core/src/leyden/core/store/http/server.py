"""`store_app`: an ASGI app that serves a store over HTTP.

`POST /{method}` takes a map of arguments and returns a value, in MessagePack, or in JSON on request. `POST /together`
takes several calls, and `POST /v1/traces` takes OTLP.
Statuses: 400 no valid call · 401 wrong token · 403 not allowed with this token · 404 unknown method · 413 too large ·
422 an error of the store, which the client raises again · 429 try again later.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from leyden.core.data.rollout import AttemptedRollout, ClaimedRollout
from leyden.core.errors import StoreError
from leyden.core.masking import mask_logs
from leyden.core.store.base import LightningStore
from leyden.core.store.http import access, streaming, worker_access
from leyden.core.store.http.access import AttemptCaller, WorkerCaller
from leyden.core.store.http.admission import AdmittedRequest, RequestAdmission, ServerLimits, check_values, too_many
from leyden.core.store.http.body_counting import msgpack_length
from leyden.core.store.http.idempotency import IdempotentCalls
from leyden.core.store.http.long_work import WRITE_SECONDS
from leyden.core.store.http.metrics import StoreMetrics
from leyden.core.store.http.otlp import endpoint
from leyden.core.store.http.pages import page_routes
from leyden.core.store.http.refused import Refused
from leyden.core.store.provenance import without_call_records
from leyden.core.store.rpc import (
    BATCH_PATH,
    CAPABILITIES,
    ERRORS,
    LONGEST_WAIT,
    MINIMAL,
    NUMBERED,
    PREFER,
    REQUEST_ID,
    WAITING,
    BatchPart,
    BatchPartAnswer,
    Method,
    StoreFailure,
    methods,
    numbers_of,
)

logger = logging.getLogger(__name__)
_LOGS = tuple(
    f"leyden.core.store.{name}" for name in ("http.server", "http.otlp.endpoint", "http.pages", "common.span_ingest")
)
"""Loggers whose messages may contain texts of a request, or a backend's address and user name; they are masked."""

_MSGPACK, _JSON = "application/msgpack", "application/json"
_PARTS = msgspec.msgpack.Decoder(list[BatchPart])
_Name = tuple[str, int]
"""Id of a call that may be repeated, and a hash of its body, since users may reuse an id."""
_CLAIMS = frozenset({"dequeue_rollout", "dequeue_many_rollouts"})
_BEGUN_AT_ONCE = 8
"""Calls in an agent's request that are started before other tasks run."""
_PART_SECONDS = 1e-4
"""Approximate time to answer one of several calls."""


def store_app(
    store: LightningStore,
    *,
    authorize: Callable[[str], bool],
    agents: Callable[[str], AttemptCaller | WorkerCaller | None] | None = None,
    limits: ServerLimits | None = None,
    metrics: StoreMetrics | None = None,
    trusted: bool = True,
    attempt_token: Callable[[str, str], str] | None = None,
) -> Starlette:
    """Return an app that serves `store`.

    `authorize` returns whether a bearer token is a trainer's. `agents` returns the holder of any other token.
    `attempt_token` makes an attempt's token for the gateway from the ids of rollout and attempt. Each claim's answer
    contains it, so that workers need no signing key.
    `trusted`: whether trainers may store records of model calls, as a remote gateway does. False where the only gateway
    uses `store` directly. An agent never may (see `store.provenance`).
    `metrics` contain the admission control whose limits apply. Raises ValueError for both `metrics` and `limits`.
    """
    if metrics is not None and limits is not None:
        raise ValueError("give metrics or limits, not both: the metrics already have limits")
    mask_logs(*_LOGS)
    metrics = metrics or StoreMetrics(RequestAdmission(limits or ServerLimits()))
    admission = metrics.admission
    authentication = _Authentication(authorize, agents, trusted)
    calls = _Calls(store, authentication, admission, metrics, attempt_token)
    traces = endpoint.OtlpEndpoint(store, admission, metrics, authentication.authenticate, authentication.trusts)
    return Starlette(
        routes=[
            *page_routes(store, metrics),
            Route(endpoint.PATH, traces.answer, methods=["POST"]),
            Route("/{method}", calls.answer, methods=["POST"]),
        ]
    )


class _Authentication:
    """Authenticates callers, and decides which of them may store records of model calls."""

    def __init__(
        self,
        authorize: Callable[[str], bool],
        agents: Callable[[str], AttemptCaller | WorkerCaller | None] | None,
        trusted: bool,
    ) -> None:
        self._authorize, self._agents, self._trusted = authorize, agents, trusted

    def trusts(self, holder: AttemptCaller | WorkerCaller | None) -> bool:
        """Whether `holder`, None for a trainer, may store records of model calls."""
        return holder is None and self._trusted

    def authenticate(self, request: Request) -> AttemptCaller | WorkerCaller | None:
        """Return the holder of a request's token, None for a trainer; raises Refused with status 401 or 403."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._authorize(token):
                return None
            holder = self._agents(token) if self._agents is not None else None
            if holder is not None:
                return holder
        raise Refused(401, "the store needs a valid bearer token", {"www-authenticate": "Bearer"})


@dataclass(frozen=True, slots=True)
class _Sender:
    """The sender of a request, and the format that it accepts."""

    holder: AttemptCaller | WorkerCaller | None
    """Holder of the token; None for a trainer."""
    json: bool
    minimal: bool

    def encode(self, value: object) -> bytes:
        """Encode an answer."""
        return msgspec.json.encode(value) if self.json else msgspec.msgpack.encode(value)


class _Calls:
    """Endpoint for the methods of a store."""

    def __init__(
        self,
        store: LightningStore,
        authentication: _Authentication,
        admission: RequestAdmission,
        metrics: StoreMetrics,
        attempt_token: Callable[[str, str], str] | None,
    ) -> None:
        self._store, self._authentication, self._admission, self._metrics = store, authentication, admission, metrics
        self._attempt_token = attempt_token
        self._idempotent_calls = IdempotentCalls()

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        given, accepted = request.headers.get("content-type", ""), request.headers.get("accept", "")
        json_in = given.startswith(_JSON)
        json = accepted.startswith(_JSON) or (json_in and _MSGPACK not in accepted)
        try:
            sender = _Sender(self._authentication.authenticate(request), json, request.headers.get(PREFER) == MINIMAL)
            return await self._answer(request, sender, json_in=json_in)
        except Refused as refused:
            self._metrics.refused(refused.status)
            if json:
                body = msgspec.json.encode(StoreFailure("Refused", str(refused)))
                return Response(body, refused.status, refused.headers, _JSON)
            return PlainTextResponse(str(refused), refused.status, refused.headers)
        except ClientDisconnect:
            return PlainTextResponse("the client has disconnected", 400)

    async def _answer(self, request: Request, sender: _Sender, *, json_in: bool) -> Response:
        name = request.path_params["method"]
        async with self._admission.admit(access.limited_as(sender.holder)) as admitted:
            if name == BATCH_PATH or name in NUMBERED:
                self._admission.check_waiting_spans()
            began = time.perf_counter()
            async with admitted.body(request) as body, admitted.turn(len(body)):
                if name == BATCH_PATH:
                    answer = BatchPartAnswer(200, msgspec.msgpack.encode(await self._parts(body, sender, admitted)))
                else:
                    method = _method(name)
                    given = request.headers.get(REQUEST_ID)
                    call, name_of_call = await self._call(method, body, given, sender, admitted, json=json_in)
                    if name == streaming.METHOD:
                        return await self._spans(method, call, sender)
                    answer = await self._answered(method, call, name_of_call, sender, request)
        self._metrics.call(name, answer.status, time.perf_counter() - began)
        return self._response(answer, sender)

    def _response(self, answer: BatchPartAnswer, sender: _Sender) -> Response:
        return Response(answer.body, answer.status, self._headers(), _JSON if sender.json else _MSGPACK)

    def _headers(self) -> dict[str, str]:
        able = {**self._store.capabilities, "otlp_traces": endpoint.can_read_otlp()}
        return {CAPABILITIES: ",".join(name for name, has in able.items() if has)}

    async def _parts(self, body: bytes, sender: _Sender, admitted: AdmittedRequest) -> list[BatchPartAnswer]:
        """Run several calls concurrently; those of an agent are started a few at a time."""
        limits, agent = self._admission.limits, isinstance(sender.holder, AttemptCaller)
        if sender.json:
            raise Refused(415, "several calls in one request must be MessagePack")
        count, most = msgpack_length(body) or 0, limits.agent.max_parts if agent else limits.max_parts
        if count > most:
            raise too_many(str(count), most, "calls")

        def read() -> list[BatchPart]:
            try:
                parts = _PARTS.decode(body)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise Refused(400, f"not a list of calls: {error}") from error
            if agent:
                check_values([part.call for part in parts], limits.agent.max_values)
            return parts

        parts = await admitted.do(len(body), read)
        admitted.charge(_PART_SECONDS * len(parts))
        step = _BEGUN_AT_ONCE if agent else max(len(parts), 1)
        running: list[asyncio.Task[BatchPartAnswer]] = []
        try:
            for first in range(0, len(parts), step):
                some = parts[first : first + step]
                running += [asyncio.create_task(self._part(part, sender, admitted)) for part in some]
                await asyncio.sleep(0)
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def _part(self, part: BatchPart, sender: _Sender, admitted: AdmittedRequest) -> BatchPartAnswer:
        try:
            method = _method(part.method)
            if method.name in WAITING:
                raise Refused(400, f"{method.name} may wait, so it cannot be called together with others")
            call, name = await self._call(method, part.call, part.id, sender, admitted)
            return await self._answered(method, call, name, sender)
        except Refused as refused:
            return BatchPartAnswer(refused.status, str(refused).encode())

    async def _call(
        self,
        method: Method,
        body: bytes,
        given: str | None,
        sender: _Sender,
        admitted: AdmittedRequest,
        *,
        json: bool = False,
    ) -> tuple[dict[str, Any], _Name | None]:
        """Return the arguments of a call after a check that the sender may make it, and its id where one is `given`."""
        is_agent, limits_of_agent = isinstance(sender.holder, AttemptCaller), self._admission.limits.agent

        def read() -> tuple[dict[str, Any], _Name | None]:
            if is_agent:
                check_values([body], limits_of_agent.max_values, json=json)
            call = _decoded(method, body, json=json)
            if is_agent:
                lists = [cast("list[object]", value) for value in call.values() if isinstance(value, list)]
                items = max(map(len, lists), default=0)
                if items > limits_of_agent.max_spans:
                    raise too_many(str(items), limits_of_agent.max_spans, "spans")
            _check_call(method, call, sender)
            return call, _call_name(given, body)

        call, name = await admitted.do(len(body), read)
        admitted.charge(WRITE_SECONDS * len(_spans_of(method, call)))
        return call, name

    async def _check_attempts(self, method: Method, call: dict[str, Any], sender: _Sender) -> None:
        """Raise Refused where an agent's attempt has ended, or a worker has not claimed the attempt."""
        if isinstance(sender.holder, AttemptCaller):
            await access.check_open(self._store, sender.holder)
        elif sender.holder is not None:
            await worker_access.check_claimed(self._store, sender.holder, method.name, call)

    async def _answered(
        self, method: Method, call: dict[str, Any], name: _Name | None, sender: _Sender, request: Request | None = None
    ) -> BatchPartAnswer:
        """Run the call, or wait for the same call by its `name`.

        With `request`, the call may wait, and a disconnect then cancels it.
        """
        known = (name, method.name, sender) if name and method.writes else None
        waits = request is not None and method.name in WAITING
        wait_for_disconnect = request.receive if request is not None and waits else None
        try:
            if not self._idempotent_calls.knows(known):
                await self._check_attempts(method, call, sender)
            answer = await self._idempotent_calls.answer(
                known, lambda: self._performed(method, call, sender), wait_for_disconnect
            )
        except StoreError as error:  # of a check of the sender's rights; `_performed` answers those of the call itself
            return _failed(method, error, sender)
        if answer is None:
            raise ClientDisconnect
        return answer

    async def _performed(self, method: Method, call: dict[str, Any], sender: _Sender) -> BatchPartAnswer:
        spans = _spans_of(method, call)
        try:
            if spans and not self._authentication.trusts(sender.holder):
                spans = await without_call_records(spans)
                call |= {"span": spans[0]} if method.name == "add_span" else {"spans": spans}
            with self._admission.writing(len(spans)):
                result = await getattr(self._store, method.name)(**call)
        except Exception as error:
            return _failed(method, error, sender)
        if isinstance(sender.holder, WorkerCaller):
            result = await worker_access.own_part(self._store, sender.holder, method.name, result)
        if method.name in NUMBERED:
            stored = result if method.name == "add_many_spans" else [result] if result else []
            self._metrics.stored(len(stored))
            if sender.minimal:
                return BatchPartAnswer(200, sender.encode(numbers_of(spans, stored)))
        elif method.name == "update_worker":
            self._metrics.workers.heartbeat(result.worker_id, result.heartbeat_stats)
        elif method.name in _CLAIMS and result:
            claimed: list[AttemptedRollout] = [result] if method.name == "dequeue_rollout" else result
            self._metrics.claimed(claimed)
            claimed = [*map(self._with_token, claimed)]
            result = claimed[0] if method.name == "dequeue_rollout" else claimed
        return BatchPartAnswer(200, sender.encode(result))

    def _with_token(self, rollout: AttemptedRollout) -> AttemptedRollout:
        """Return a claimed rollout with its attempt's token, where this server makes tokens."""
        if self._attempt_token is None:
            return rollout
        given = {name: getattr(rollout, name) for name in AttemptedRollout.__struct_fields__}
        return ClaimedRollout(**given, token=self._attempt_token(rollout.rollout_id, rollout.attempt.attempt_id))

    async def _spans(self, method: Method, call: dict[str, Any], sender: _Sender) -> Response:
        """Answer a query for spans: whole where they are few, otherwise streamed while they are read."""
        began = time.perf_counter()
        try:
            await self._check_attempts(method, call, sender)
            page = await streaming.small(self._store, call)
            answer = None if page is None else BatchPartAnswer(200, sender.encode(page))
        except Refused:
            raise
        except Exception as error:
            answer = _failed(method, error, sender)
        self._metrics.call(method.name, 200 if answer is None else answer.status, time.perf_counter() - began)
        if answer is not None:
            return self._response(answer, sender)
        pieces = streaming.whole(self._store, call, json=sender.json)
        return StreamingResponse(pieces, 200, self._headers(), _JSON if sender.json else _MSGPACK)


def _check_call(method: Method, call: dict[str, Any], sender: _Sender) -> None:
    if isinstance(sender.holder, AttemptCaller):
        access.check_call(sender.holder, method.name, call)
    elif sender.holder is not None:
        worker_access.check_call(sender.holder, method.name, call)


def _call_name(given: str | None, body: bytes) -> _Name | None:
    return (given, hash(body)) if given else None


def _spans_of(method: Method, call: dict[str, Any]) -> list[Any]:
    if method.name not in NUMBERED:
        return []
    return [call["span"]] if method.name == "add_span" else call["spans"]


def _failed(method: Method, error: Exception, sender: _Sender) -> BatchPartAnswer:
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), None)
    if kind is not None:
        return BatchPartAnswer(422, sender.encode(StoreFailure(kind, str(error))))
    logger.error("the store failed in %s", method.name, exc_info=error)
    line = "the store failed; its log has the reason"
    return BatchPartAnswer(500, sender.encode(StoreFailure("StoreError", line)) if sender.json else line.encode())


def _method(name: str) -> Method:
    if name not in methods():
        raise Refused(404, f"the store has no method {name[:64]!r}")
    return methods()[name]


def _decoded(method: Method, body: bytes, *, json: bool = False) -> dict[str, Any]:
    try:
        call = method.decode_call(body, json=json)
    except (ValueError, RecursionError) as error:  # RecursionError: the value is nested too deep
        raise Refused(400, f"not a call of {method.name}: {error}") from error
    if method.name in WAITING:
        wanted = call["timeout"]
        call["timeout"] = LONGEST_WAIT if wanted is None else min(wanted, LONGEST_WAIT)
    return call
