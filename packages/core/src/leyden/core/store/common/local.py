"""`LocalStore`: the whole store interface on top of transactions over rows, which a backend provides.

The state rules are in `state_and_retry_rules` and `lifecycle`. Waiting callers never poll. A commit notifies them. They
also look again when the health check is next due, or when another process may have written.
"""

import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from leyden.core.data.resources import NamedResources, ResourcesUpdate
from leyden.core.data.rollout import (
    FINISHED_ROLLOUT,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRollout,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Task,
)
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker
from leyden.core.errors import CallRefused, StoreClosed
from leyden.core.store.arguments import UNSET, Unset, given, not_none
from leyden.core.store.common import lifecycle, span_ingest
from leyden.core.store.common.group_commit import Answer, result_of
from leyden.core.store.common.named_requests import idempotent_attempts, idempotent_resources
from leyden.core.store.common.notifier import Notifier
from leyden.core.store.common.reading import to_rollouts
from leyden.core.store.common.rows import ResourcesRow, Rows, encode, to_resources, to_worker
from leyden.core.store.common.run_records import LocalRunRecords
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.common.span_entry import MENDABLE, entered, mended
from leyden.core.store.state_and_retry_rules import check_config, check_mode
from leyden.core.store.text import check_ids, check_queue, check_text, check_texts

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

T = TypeVar("T")

_FEW = 8
"""Up to this many rollouts count as a small write."""
_SOONEST = 0.001
"""Shortest wait in seconds, which prevents a busy loop after a deadline that has just passed."""


class LocalStore(LocalRunRecords):
    """A store whose rows this process reads and writes itself.

    `clock` returns Unix seconds. `recheck` is the number of seconds after which a waiting caller looks for writes of
    other processes; None where there are none.
    """

    def __init__(self, clock: Callable[[], float] = time.time, recheck: float | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._recheck = recheck
        self._notifier = Notifier()
        self._closed = False
        self._recent_calls = RecentCalls()
        self.given_positions: Iterator[int] | None = None
        """Positions of all new rows where this store is a shard, as in `Rows.given_positions`."""

    @abstractmethod
    async def _transact(self, work: Callable[[Rows], T], *, write: bool, small: bool) -> T:
        """Run `work` in a transaction after the health check, then notify its topics.

        Without `write`, `work` makes no changes. `small` work reads and writes few rows; a switch of threads may cost
        more than that.
        """

    @abstractmethod
    async def _release(self) -> None:
        """Release files and threads."""

    async def close(self) -> None:
        """Release everything; waiting callers get StoreClosed."""
        if not self._closed:
            self._closed = True
            self._notifier.notify_all()
            await self._release()

    async def _write(self, work: Callable[[Rows], T], *, small: bool = False, once: bool = False) -> T:
        """Run `work` in a transaction. With `once`, it has another effect when it runs again after it was committed."""
        self._check_open()
        return await self._transact(work, write=True, small=small)

    async def _read(self, work: Callable[[Rows], T], *, small: bool = False) -> T:
        self._check_open()
        return await self._transact(work, write=False, small=small)

    async def transact(self, work: Callable[[Rows], T], *, write: bool, small: bool = True) -> T:
        """Run `work` in a transaction, for a store of which this one is a shard; see `_transact`."""
        return await (self._write(work, small=small, once=True) if write else self._read(work, small=small))

    async def wait_until(
        self, look: Callable[[], Awaitable[T | None]], topics: Iterable[str], timeout: float | None
    ) -> T | None:
        """Call `look` after every notification, for a store of which this one is a shard; see `_wait`."""
        self._check_open()
        return await self._wait(look, topics, timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed()

    # --- Rollouts and the queues

    async def start_rollout(
        self,
        input: Task,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        request_id: str | None = None,
        queue: str = "",
    ) -> AttemptedRollout:
        """Create a rollout with its first attempt."""
        request = EnqueueRollout(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, queue=queue
        )
        check_text(resources_id=resources_id)
        check_ids(worker_id=worker_id, request_id=request_id)
        check_queue(queue)
        return await self._begin(request_id, lambda rows: lifecycle.start(rows, request, worker_id), queue)

    async def _begin(
        self, request_id: str | None, work: Callable[[Rows], AttemptedRollout], queue: str | None = None
    ) -> AttemptedRollout:
        """Begin an attempt; with a request id, only once.

        Raises CallRefused where the attempt of the first call is no longer open or the latest.
        """
        made = await self._write(
            lambda rows: idempotent_attempts(rows, request_id, lambda rows: [work(rows)], queue),
            small=True,
            once=request_id is None,
        )
        if not made:
            raise CallRefused(f"the attempt that request {request_id} began has ended, or is no longer the latest")
        return made[0]

    async def enqueue_rollout(
        self,
        input: Task,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        rollout_id: str | None = None,
        queue: str = "",
    ) -> Rollout:
        """Queue one rollout."""
        request = EnqueueRollout(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=metadata,
            rollout_id=rollout_id,
            queue=queue,
        )
        return (await self._enqueue([request]))[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Queue rollouts, all or none."""
        return await self._enqueue(rollouts)

    async def _enqueue(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        for request in rollouts:
            check_queue(request.queue)
            if request.resources_id is not None:
                check_text(resources_id=request.resources_id)
            if request.rollout_id is not None:
                check_ids(rollout_id=request.rollout_id)
        is_new = any(rollout.rollout_id is None for rollout in rollouts)
        small = len(rollouts) <= _FEW
        return await self._write(lambda rows: lifecycle.enqueue(rows, rollouts), small=small, once=is_new)

    async def dequeue_rollout(
        self, worker_id: str | None = None, request_id: str | None = None, queue: str = ""
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout of a queue."""
        return next(iter(await self._claim(queue, 1, worker_id, 0.0, request_id)), None)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        timeout: float = 0.0,
        request_id: str | None = None,
        queue: str = "",
    ) -> list[AttemptedRollout]:
        """Claim rollouts, waiting for the first one."""
        return await self._claim(queue, limit, worker_id, timeout, request_id)

    async def _claim(
        self, queue: str, limit: int, worker_id: str | None, timeout: float, request_id: str | None
    ) -> list[AttemptedRollout]:
        check_ids(worker_id=worker_id, request_id=request_id)
        check_queue(queue)
        small = limit <= _FEW

        def claim(rows: Rows) -> list[AttemptedRollout]:
            return idempotent_attempts(
                rows, request_id, lambda rows: lifecycle.claim(rows, queue, limit, worker_id), queue
            )

        once = request_id is None
        claimed = await self._write(claim, small=small, once=once)
        if claimed or limit <= 0 or timeout <= 0:
            return claimed

        async def look() -> list[AttemptedRollout] | None:
            if not await self._read(lambda rows: rows.head(queue, 1), small=True):
                return None
            return await self._write(claim, small=small, once=once) or None

        return await self._wait(look, {lifecycle.queue_topic(queue)}, timeout) or []

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        """Start a further attempt manually."""
        check_text(rollout_id=rollout_id)
        check_ids(worker_id=worker_id, request_id=request_id)
        return await self._begin(request_id, lambda rows: lifecycle.start_attempt(rows, rollout_id, worker_id))

    async def update_rollout(
        self,
        rollout_id: str,
        input: Task | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Change fields of a rollout."""
        check_text(rollout_id=rollout_id, resources_id=resources_id)
        changes = given(mode=mode, resources_id=resources_id, **not_none(status=status))
        if mode is not UNSET:
            check_mode(mode)
        if input is not UNSET:
            changes["input"] = encode(input, "the input of a rollout")
        if config is not UNSET:
            not_none(config=config)
            check_config(config)
            changes["config"] = encode(config, "the config of a rollout")
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of a rollout")
        return await self._write(
            lambda rows: lifecycle.update_rollout(rows, rollout_id, dict(changes)),
            small=True,
            once=status in ("queuing", "requeuing"),  # another worker may have claimed it meanwhile
        )

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all are finished."""
        check_texts("rollout_id", rollout_ids)
        pending = dict.fromkeys(rollout_ids)
        finished: dict[str, Rollout] = {}

        def work(rows: Rows) -> list[Rollout]:
            found = rows.rollouts(list(pending))
            for unknown in pending.keys() - found.keys():
                del pending[unknown]
            return to_rollouts(rows, [row for row in found.values() if row.status in FINISHED_ROLLOUT])

        async def look() -> bool | None:
            for rollout in await self._read(work):
                finished[rollout.rollout_id] = rollout
                del pending[rollout.rollout_id]
            return None if pending else True

        await self._wait(look, list(pending), timeout)
        return [finished[rollout_id] for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in finished]

    async def _wait(
        self, look: Callable[[], Awaitable[T | None]], topics: Iterable[str], timeout: float | None
    ) -> T | None:
        """Call `look` after every notification until it returns a value or `timeout` seconds have passed."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._notifier.listen({lifecycle.CLOCK, *topics}) as waiter:
            while True:
                found = await look()
                left = None if end is None else end - time.monotonic()
                if found is not None or (left is not None and left <= 0):
                    return found
                due = await self._read(lambda rows: rows.next_deadline(), small=True)
                until_due = None if due is None else max(due - self._clock(), _SOONEST)
                await waiter.wait(min((s for s in (left, until_due, self._recheck) if s is not None), default=None))

    # --- Attempts

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        """Change fields of an attempt."""
        check_text(rollout_id=rollout_id, attempt_id=attempt_id)
        check_ids(worker_id=worker_id)
        changes = given(**not_none(status=status), worker_id=worker_id, last_heartbeat_time=last_heartbeat_time)
        if metadata is not UNSET:
            changes["metadata"] = encode(metadata or {}, "the metadata of an attempt")
        return await self._write(
            lambda rows: lifecycle.update_attempt(rows, rollout_id, attempt_id, dict(changes)), small=True
        )

    # --- Spans

    async def add_span(self, span: Span) -> Span | None:
        """Store a span."""
        return next(iter(await self.add_many_spans([span])), None)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, all or none."""
        spans = await entered(spans)
        try:
            stored = await self._add_spans(spans)
        except MENDABLE as error:
            stored = await self._add_spans(await mended(spans, error))
        self._recent_calls.note(stored)
        return stored

    async def _add_spans(self, spans: Sequence[Span]) -> list[Span]:
        return await self._write(lambda rows: result_of(self._add(rows, [spans])[0]))

    def _add(self, rows: Rows, batches: Sequence[Sequence[Span]], size: int | None = None) -> list[Answer]:
        return span_ingest.add_spans(rows, batches, self._recent_calls, size)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK."""
        from leyden.core.store.sdk_spans import span_from_otel

        return await self.add_span(span_from_otel(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve the rollout's next span number."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Reserve a span number for each pair."""
        rollout_ids = [rollout_id for rollout_id, _ in rollout_attempt_ids]
        check_texts("rollout_id", rollout_ids)
        return await self._write(lambda rows: span_ingest.next_numbers(rows, rollout_ids))

    async def drop_spans(self, rollout_id: str) -> int:
        """Remove the spans of a finished rollout."""
        check_text(rollout_id=rollout_id)
        return await self._write(lambda rows: span_ingest.drop(rows, rollout_id))

    # --- Resources

    async def add_resources(self, resources: NamedResources, request_id: str | None = None) -> ResourcesUpdate:
        """Store resources under a new id."""
        return await self.update_resources(f"rs-{uuid4().hex[:16]}", resources, request_id)

    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a new version of resources."""
        check_ids(resources_id=resources_id, request_id=request_id)
        payload = encode(resources, "resources")

        def work(rows: Rows) -> ResourcesUpdate:
            row = new_version(rows, resources_id, payload)
            rows.insert_resources(row)
            return to_resources(row)

        return await self._write(lambda rows: idempotent_resources(rows, request_id, work), once=request_id is None)

    # --- Workers

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat."""
        check_ids(worker_id=worker_id)
        stats = None if heartbeat_stats is UNSET else encode(heartbeat_stats, "the statistics of a worker")
        return await self._write(lambda rows: to_worker(lifecycle.record_heartbeat(rows, worker_id, stats)))


def new_version(rows: Rows, resources_id: str, payload: bytes) -> ResourcesRow:
    """Return the next version of resources, which is not stored yet."""
    old = rows.resources(resources_id)
    return ResourcesRow(
        resources_id=resources_id,
        version=1 if old is None else old.version + 1,
        create_time=rows.now if old is None else old.create_time,
        update_time=rows.now,
        resources=payload,
    )


def unless_due(work: Callable[[Rows], T]) -> Callable[[Rows], tuple[T] | None]:
    """Return a function that does `work` and returns the result in a tuple, or None where an attempt is overdue.

    In that case, the health check must write first.
    """

    def look(rows: Rows) -> tuple[T] | None:
        due = rows.next_deadline()
        return (work(rows),) if due is None or due > rows.now else None

    return look


def after_health_check(rows: Rows, work: Callable[[Rows], T]) -> T:
    """Return the result of `work` after the health check of the rows."""
    lifecycle.check_health(rows)
    return work(rows)
