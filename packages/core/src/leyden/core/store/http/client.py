"""`HttpStore`: a client of a store's server, `store.http.server`, as an implementation of the store interface.

A request without an answer is sent again under the same id, and the server returns its first answer.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from uuid import uuid4

import msgspec

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS, CallRefused, StoreError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.common.lifecycle import new_rollout_id
from leyden.core.store.common.single_calls import SingleCalls
from leyden.core.store.common.span_entry import encoded
from leyden.core.store.http.connection import PATIENCE, Connection
from leyden.core.store.rpc import LONGEST_WAIT, StoreFailure, methods, numbered

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_FINAL = frozenset({400, 403, 413})
"""Statuses of calls that would be refused again."""
_FAILURE = msgspec.msgpack.Decoder(StoreFailure)
_NUMBERS = msgspec.msgpack.Decoder(list[int])
_encoded = msgspec.msgpack.encode
"""Encoded forms are compared, since NaN equals itself only there."""
_MOST_CLAIMS = 1024
"""Largest number of workers whose unanswered claims are recorded."""


def _new_id() -> str:
    return uuid4().hex


def _sent(method: F) -> F:
    """Return a method of `HttpStore` that sends a call of `method`, which is one of the interface, to the server.

    A method with a `request_id` gets a new one where the caller gives none, so that a repeated request has the same.
    """
    has_request_id = "request_id" in inspect.signature(method).parameters

    @wraps(method, updated=())  # without the attribute that marks it as abstract
    async def send(self: "HttpStore", *args: Any, **named: Any) -> Any:
        if has_request_id:  # by name, as `ArgumentChecks` gives all arguments of such a method
            named["request_id"] = named.get("request_id") or _new_id()
        # it becomes a method of the class
        return await self._call(method, *args, **named)  # pyright: ignore[reportPrivateUsage]

    return cast("F", send)


def _line(body: bytes, status: int) -> str:
    """Return what a server says about a failure, or its status where it says nothing."""
    return body[:500].decode("utf-8", "replace").strip() or f"the store answered {status}"


class HttpStore(SingleCalls):
    """The store behind the server at `url`. Any number of threads and event loops may use it.

    Requests to an unreachable server are repeated for `patience` seconds, then StoreError is raised.
    """

    def __init__(self, url: str, token: str, patience: float = PATIENCE) -> None:
        self._connection = Connection(url, token, patience)
        self._claims = UnansweredClaims()

    @property
    def address(self) -> tuple[str, str]:
        """URL and token, with which another process can open the same store."""
        return self._connection.url, self._connection.token

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Features of the store, known from the server's first answer on; any process can use a server."""
        known = self._connection.capabilities
        return {"durable": "durable" in known, "multi_process": True, "otlp_traces": "otlp_traces" in known}

    def otlp_traces_endpoint(self) -> str | None:
        """Return the URL for OTLP traces, known from the server's first answer on; None where there is none."""
        return f"{self._connection.url}/v1/traces" if self.capabilities["otlp_traces"] else None

    async def check(self) -> None:
        """Raise UsageError for a wrong token or URL, and StoreError if no server answers, or if its store fails."""
        status, body, _ = await self._connection.call("add_many_spans", methods()["add_many_spans"].encode_call([]))
        url = self._connection.url
        if status in (401, 403):
            raise UsageError(f"the store at {url} does not accept the token: give the one that `leyden store` has")
        if 300 <= status < 500 and status != 429:
            raise UsageError(f"{url} is not the URL of a store's server: it answered with status {status}")
        if status != 200:
            raise StoreError(f"the store at {url} fails: {_line(body, status)}")

    async def close(self) -> None:
        """Close the connections; the store behind the server stays open."""
        await self._connection.close()

    async def _call(
        self, method: Callable[Concatenate[LightningStore, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Send a call of a method of the interface to the server, and return its result."""
        name = method.__name__
        body, _ = await self._answer(name, methods()[name].encode_call(*args, **kwargs))
        try:
            return methods()[name].decode_answer(body)
        except msgspec.DecodeError as error:
            raise StoreError(f"the store's answer to {name} cannot be read: {error}") from error

    async def _answer(self, name: str, call: bytes) -> tuple[bytes, bool]:
        """Send a call; return its answer, and whether it was sent again. Raises the error that the server returned."""
        status, body, was_sent_again = await self._connection.call(name, call)
        if status == 200:
            return body, was_sent_again
        try:
            failure = _FAILURE.decode(body) if status == 422 else None
        except msgspec.DecodeError as error:
            raise StoreError(f"the store's answer to {name} cannot be read: {error}") from error
        if failure is not None:
            raise failure.raised()
        raise (CallRefused if status in _FINAL else StoreError)(f"{name}: {_line(body, status)}")

    statistics = _sent(LightningStore.statistics)

    # --- Rollouts and the queue

    start_rollout = _sent(LightningStore.start_rollout)
    start_attempt = _sent(LightningStore.start_attempt)
    query_rollouts = _sent(LightningStore.query_rollouts)
    get_rollout_by_id = _sent(LightningStore.get_rollout_by_id)
    update_rollout = _sent(LightningStore.update_rollout)

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Do `enqueue_rollout` for each, in order, in one transaction."""
        named = [msgspec.structs.replace(item, rollout_id=item.rollout_id or new_rollout_id()) for item in rollouts]
        return await self._call(LightningStore.enqueue_many_rollouts, named)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        timeout: float = 0.0,
        request_id: str | None = None,
        queue: str = "",
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts of a queue; wait up to `timeout` seconds for the first one, without polling.

        If the answer to a claim was lost, the worker's next claim from that queue returns the rollouts of the lost one.
        """
        of_queue = {"queue": queue} if queue else {}  # left out where empty, since an older server has no such argument
        end = time.monotonic() + timeout
        while True:
            wait = min(max(end - time.monotonic(), 0.0), LONGEST_WAIT)
            with self._claims.named((worker_id, queue), limit, request_id) as name:
                claimed = await self._call(
                    LightningStore.dequeue_many_rollouts,
                    limit=limit,
                    worker_id=worker_id,
                    timeout=wait,
                    request_id=name,
                    **of_queue,
                )
            if claimed or limit <= 0 or time.monotonic() >= end:
                return claimed

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all are finished; return those that are finished within `timeout` seconds.

        Unknown ids are left out.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            wait = LONGEST_WAIT if end is None else min(max(end - time.monotonic(), 0.0), LONGEST_WAIT)
            finished = await self._call(LightningStore.wait_for_rollouts, rollout_ids=rollout_ids, timeout=wait)
            if end is not None and time.monotonic() >= end:
                return finished
            missing = list(set(rollout_ids) - {rollout.rollout_id for rollout in finished})
            if not missing:
                return finished
            page = await self.query_rollouts(rollout_id_in=missing, limit=0)
            if not page.total and not page.missing:
                return finished

    # --- Attempts

    query_attempts = _sent(LightningStore.query_attempts)
    get_latest_attempt = _sent(LightningStore.get_latest_attempt)
    update_attempt = _sent(LightningStore.update_attempt)

    # --- Spans

    get_next_span_sequence_id = _sent(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _sent(LightningStore.get_many_span_sequence_ids)
    query_spans = _sent(LightningStore.query_spans)
    drop_spans = _sent(LightningStore.drop_spans)

    async def add_span(self, span: Span) -> Span | None:
        """Store a span, which also counts as a heartbeat; return None when it is an exact duplicate."""
        return next(iter(await self._add("add_span", [span], lambda spans: spans[0])), None)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans of any attempts in one transaction; return the stored spans without duplicates."""
        return await self._add("add_many_spans", spans, lambda spans: spans)

    async def _add(self, name: str, spans: Sequence[Span], argument: Callable[[Sequence[Span]], Any]) -> list[Span]:
        """Store spans by the method `name`, whose argument `argument` makes from the spans.

        The server returns only the spans' numbers.
        """
        spans, call = await encoded(spans, lambda spans: methods()[name].encode_call(argument(spans)))
        body, was_sent_again = await self._answer(name, call)
        try:
            numbers = _NUMBERS.decode(body)
            if was_sent_again:
                numbers = [number or await self._own_number(span) for span, number in zip(spans, numbers, strict=True)]
            return numbered(spans, numbers)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreError(f"the store's answer to {name} cannot be read: {error}") from error

    async def _own_number(self, span: Span) -> int:
        """Return the number of a stored span if it equals `span`, so that this call has stored it; otherwise 0.

        The answer of the first request may be lost, and so may the server that had recorded it.
        """
        found = await self.query_spans(span.rollout_id, span.attempt_id, span_id=span.span_id, limit=1)
        number = found.items[0].sequence_id if found.items else 0
        same = number and _encoded(found.items[0]) == _encoded(msgspec.structs.replace(span, sequence_id=number))
        return number if same else 0

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK."""
        from leyden.core.store.sdk_spans import span_from_otel

        return await self.add_span(span_from_otel(readable_span, rollout_id, attempt_id, sequence_id or 0))

    # --- Resources

    add_resources = _sent(LightningStore.add_resources)
    update_resources = _sent(LightningStore.update_resources)
    query_resources = _sent(LightningStore.query_resources)
    get_resources_by_id = _sent(LightningStore.get_resources_by_id)
    get_latest_resources = _sent(LightningStore.get_latest_resources)

    # --- Workers

    query_workers = _sent(LightningStore.query_workers)
    get_worker_by_id = _sent(LightningStore.get_worker_by_id)
    update_worker = _sent(LightningStore.update_worker)

    # --- Runs, metrics and policy versions

    add_run = _sent(LightningStore.add_run)
    update_run = _sent(LightningStore.update_run)
    rewind_run = _sent(LightningStore.rewind_run)
    query_runs = _sent(LightningStore.query_runs)
    get_run_by_id = _sent(LightningStore.get_run_by_id)
    add_metrics = _sent(LightningStore.add_metrics)
    query_metrics = _sent(LightningStore.query_metrics)
    add_policy_versions = _sent(LightningStore.add_policy_versions)
    update_policy_version = _sent(LightningStore.update_policy_version)
    query_policy_versions = _sent(LightningStore.query_policy_versions)


class UnansweredClaims:
    """Ids of claims, with which a client gets the rollouts of a claim whose answer was lost.

    Thread-safe if each worker makes one claim at a time. Parallel claims of one worker get ids of their own.
    """

    def __init__(self) -> None:
        self._unanswered: dict[tuple[str | None, str], tuple[str, int]] = {}
        """By worker and queue: the claim that the server may have granted, and how many rollouts it requested."""

    @contextmanager
    def named(self, claimer: tuple[str | None, str], limit: int, name: str | None) -> Generator[str]:
        """Return the id of a claim: `name`, the id of the last claim if its answer was lost, or a new one.

        `claimer` is the worker's id with the name of the queue.
        """
        before = self._unanswered.pop(claimer, None) if name is None else None
        if before is not None and before[1] > limit:  # the server may have granted more than `limit`
            self._unanswered[claimer] = before
            before = None
        used = name or (_new_id() if before is None else before[0])
        try:
            yield used
        except BaseException as error:  # also when cancelled, since the server may have received the request
            if not isinstance(error, REFUSALS) and len(self._unanswered) < _MOST_CLAIMS and name is None:
                self._unanswered.setdefault(claimer, (used, max(limit, 0)))
            raise
