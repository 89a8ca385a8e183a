"""`OtlpEndpoint`: the endpoint `POST /v1/traces` of a store's server, for any standard OpenTelemetry exporter.

The valid spans of a request are stored in one transaction. The others are refused with a reason, as a partial success
of the OTLP specification.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from leyden.core.errors import REFUSALS
from leyden.core.store.base import LightningStore
from leyden.core.store.http import access, worker_access
from leyden.core.store.http.access import AttemptCaller, WorkerCaller
from leyden.core.store.http.admission import AdmittedRequest, RequestAdmission, too_large
from leyden.core.store.http.long_work import WRITE_SECONDS
from leyden.core.store.http.metrics import StoreMetrics
from leyden.core.store.http.refused import Refused
from leyden.core.store.provenance import without_call_records

if TYPE_CHECKING:
    from leyden.core.store.http.otlp.reading import ReadRequest

logger = logging.getLogger(__name__)

PATH = "/v1/traces"
_JSON = "application/json"
_KINDS = ("application/x-protobuf", _JSON)
_WEIGHT = 32
"""A byte of OTLP takes as long to read as this many bytes of a MessagePack call; a span may have only two bytes."""


@cache
def can_read_otlp() -> bool:
    """Whether the packages for OTLP are installed."""
    return all(find_spec(name) for name in ("opentelemetry.proto", "google.protobuf", "google.rpc"))


class OtlpEndpoint:
    """Stores the spans of OTLP requests in `store`.

    `authenticate` returns the agent or worker that sent a request, None for a trainer. `trusts` returns whether that
    caller may store records of model calls.
    """

    def __init__(
        self,
        store: LightningStore,
        admission: RequestAdmission,
        metrics: StoreMetrics,
        authenticate: Callable[[Request], AttemptCaller | WorkerCaller | None],
        trusts: Callable[[AttemptCaller | WorkerCaller | None], bool],
    ) -> None:
        self._store, self._admission, self._metrics, self._authenticate = store, admission, metrics, authenticate
        self._trusts = trusts

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await self._stored(request, kind)
        except Refused as refused:
            self._metrics.refused(refused.status)
            return _refusal(refused, kind)
        except ClientDisconnect:
            return PlainTextResponse("the client has disconnected", 400)

    async def _stored(self, request: Request, kind: str) -> Response:
        caller = self._authenticate(request)
        if not can_read_otlp():
            raise Refused(501, "this server does not accept OTLP: it needs pip install 'leyden-core[otlp]'")
        if kind not in _KINDS:
            raise Refused(415, f"the content type of OTLP must be {' or '.join(_KINDS)}")
        async with self._admission.admit(access.limited_as(caller)) as admitted:
            if isinstance(caller, AttemptCaller):
                await access.check_open(self._store, caller)
            self._admission.check_waiting_spans()
            async with admitted.body(request) as body, admitted.turn(_WEIGHT * len(body)):
                if kind == _JSON and len(body) > self._admission.limits.max_json:
                    raise too_large(self._admission.limits.max_json, "JSON ")
                taken = await self._read(body, kind, caller, admitted)
                admitted.charge(WRITE_SECONDS * len(taken.spans))
                with self._admission.writing(len(taken.spans)):
                    stored = await self._write(taken, trusted=self._trusts(caller))
        self._metrics.stored(stored, taken.refused)
        return Response(taken.answer(kind), 200, media_type=kind)

    async def _read(
        self, body: bytes, kind: str, caller: AttemptCaller | WorkerCaller | None, admitted: AdmittedRequest
    ) -> "ReadRequest":
        from leyden.core.store.http.otlp.reading import OtlpLimits, read_request

        agent = caller if isinstance(caller, AttemptCaller) else None
        limits = self._admission.limits
        limits_for_spans = limits if agent is None else limits.agent
        most = OtlpLimits(limits_for_spans.max_spans, limits_for_spans.max_values, limits.max_span)

        def read(caller: AttemptCaller | None = agent) -> "ReadRequest":
            if caller is None:
                return read_request(body, kind, most)
            taken = read_request(body, kind, most, attempt=caller.key)
            taken.keep(lambda span: access.span_problem(caller, span))
            return taken

        taken = await admitted.do(_WEIGHT * len(body), read)
        if agent is None:
            worker = caller if isinstance(caller, WorkerCaller) else None
            problems = {key: await self._problem(*key, worker) for key in taken.attempts()}
            taken.keep(lambda span: problems[span.rollout_id, span.attempt_id])
        return taken

    async def _problem(self, rollout_id: str, attempt_id: str, worker: WorkerCaller | None) -> str | None:
        """Return why spans of an attempt cannot be stored; None where it exists and, for a worker, is claimed by it."""
        if worker is not None:
            return await worker_access.claim_problem(self._store, worker, rollout_id, attempt_id)
        if await self._store.find_attempt(rollout_id, attempt_id) is not None:
            return None
        if await self._store.get_rollout_by_id(rollout_id) is not None:
            return f"rollout {rollout_id} has no attempt {attempt_id}"
        return f"there is no rollout {rollout_id}"

    async def _write(self, taken: "ReadRequest", *, trusted: bool) -> int:
        """Store the spans, all or none, and return their number.

        Raises Refused: with status 400 for invalid spans, and 503 for failures after which the exporter may try again.
        """
        if not taken.spans:
            return 0
        try:
            spans = taken.spans if trusted else await without_call_records(taken.spans)
            return len(await self._store.add_many_spans(spans))
        except REFUSALS as error:
            raise Refused(400, str(error)) from error
        except Exception:
            logger.exception("spans that arrived over OTLP could not be stored")
            headers = {"retry-after": str(self._admission.limits.retry_seconds)}
            raise Refused(503, "the store failed; its log has the reason", headers) from None


def _refusal(refused: Refused, kind: str) -> Response:
    if kind not in _KINDS or not can_read_otlp():
        return PlainTextResponse(str(refused), refused.status, refused.headers)
    from leyden.core.store.http.otlp.reading import failure

    return Response(failure(str(refused), kind), refused.status, refused.headers, kind)
