"""`ShardedStore`: one store over several in PostgreSQL, Redis or SQLite, its shards.

A rollout is on one shard, with its attempts, spans and span numbers, so that every transaction about it is one of that
shard. Resources are on every shard, a run on one, and a worker wherever it has had an attempt. Calls about all shards
ask each and merge the answers.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from leyden.core.data.page import Page
from leyden.core.data.resources import NamedResources, ResourcesUpdate
from leyden.core.data.rollout import (
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
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset
from leyden.core.store.common.lifecycle import missing_attempt
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.reading import rollouts_query, to_rollouts, workers_query
from leyden.core.store.common.rows import Rows, encode
from leyden.core.store.common.span_entry import MENDABLE, entered
from leyden.core.store.common.span_ingest import problem
from leyden.core.store.query import Place, Query
from leyden.core.store.sharded.claims import ClaimRequest, Claims
from leyden.core.store.sharded.enqueueing import Enqueueing
from leyden.core.store.sharded.merging import Part, merged_page
from leyden.core.store.sharded.resources import SharedResources
from leyden.core.store.sharded.run_records import ShardedRunRecords
from leyden.core.store.sharded.shard import OpenShard, Shard
from leyden.core.store.sharded.shard_list import ShardList
from leyden.core.store.sharded.shards import Shards
from leyden.core.store.sharded.statistics import statistics_of
from leyden.core.store.sharded.waiting import wait_for_rollouts
from leyden.core.store.sharded.workers import find_worker, page_of_workers
from leyden.core.store.text import check_ids, check_queue, check_text, check_texts

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

T = TypeVar("T")


class ShardedStore(ShardedRunRecords):
    """A store over shards. Open it with `open_store("shard:///path/of/the/list")`."""

    name = "shard"

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)
        self._opened = time.monotonic()
        self._resources = SharedResources(shards)
        self._claims = Claims(shards, self._locations)
        self._enqueueing = Enqueueing(shards, self._locations, self._resources)

    @classmethod
    async def open(cls, path: str | Path, opening: OpenShard) -> "ShardedStore":
        """Open the shards that the file at `path` lists; `opening` opens a store by its URI.

        Raises UsageError for an unusable list, and where no shard can be opened. Shards that cannot be opened are tried
        again until they can.
        """
        shards = Shards(ShardList(Path(path)), opening)
        await shards.open()
        return cls(shards)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Durable where every shard is, and shared between processes."""
        durable = all(shard.store is None or shard.store.capabilities["durable"] for shard in self._shards.now)
        return {"durable": durable, "multi_process": True, "otlp_traces": False}

    async def close(self) -> None:
        """Close all shards; waiting callers get a StoreError."""
        await self._shards.close()

    async def statistics(self) -> dict[str, Any]:
        """Return counts of all shards that can be reached, and of each; `shards` has the problem of the others."""
        return {"name": self.name, "uptime": time.monotonic() - self._opened, **await statistics_of(self._shards)}

    async def _on(self, rollout_id: str, call: Callable[[LocalStore], Awaitable[T]]) -> T:
        """Make a call on the shard that has the rollout; where none has it, on one that reports that."""
        check_text(rollout_id=rollout_id)
        shard = await self._locations.rollout(rollout_id)
        return await shard.call(call)

    # --- Rollouts and the queue

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
        return await self._enqueueing.start(request, worker_id, request_id)

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Queue rollouts, in one transaction for each shard."""
        for request in rollouts:
            check_text(resources_id=request.resources_id)
            check_ids(rollout_id=request.rollout_id)
            check_queue(request.queue)
        return await self._enqueueing.enqueue(rollouts)

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
        check_ids(worker_id=worker_id, request_id=request_id)
        check_queue(queue)
        request = ClaimRequest(queue=queue, limit=limit, worker_id=worker_id, id=request_id)
        if limit <= 0:
            return []
        end = time.monotonic() + timeout
        claimed = await self._claims.claim(request)
        while not claimed and (left := end - time.monotonic()) > 0:
            await self._claims.wait(queue, left)
            claimed = await self._claims.claim(request, notes_idle=False)
        return claimed

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        """Start a further attempt manually."""
        check_text(rollout_id=rollout_id)
        check_ids(worker_id=worker_id, request_id=request_id)
        made_on = None if request_id is None else await self._claims.made_on(request_id)
        shard = made_on or await self._locations.rollout(rollout_id)
        return await shard.call(lambda store: store.start_attempt(rollout_id, worker_id, request_id))

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        queue: str | None = None,
    ) -> Page[Rollout]:
        """Return rollouts of all shards with their latest attempts."""
        query = rollouts_query(
            status if status_in is None else status_in,
            rollout_ids if rollout_id_in is None else rollout_id_in,
            rollout_id_contains,
            filter_logic,
            sort_by,
            sort_order,
            limit,
            offset,
            queue,
        )
        return await merged_page(self._shards, query, _part_of_rollouts)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return one rollout."""
        return await self._on(rollout_id, lambda store: store.get_rollout_by_id(rollout_id))

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout."""
        return await self._on(rollout_id, lambda store: store.find_attempt(rollout_id, attempt_id))

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
        check_text(resources_id=resources_id)
        if isinstance(resources_id, str):
            await self._resources.agreed()  # the version is that of the rollout's shard
        return await self._on(
            rollout_id,
            lambda store: store.update_rollout(rollout_id, input, mode, resources_id, status, config, metadata),
        )

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all are finished; those on a shard that cannot be reached are waited for."""
        check_texts("rollout_id", rollout_ids)
        return await wait_for_rollouts(self._shards, self._locations, rollout_ids, timeout)

    # --- Attempts

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Attempt]:
        """Return the attempts of a rollout."""
        return await self._on(
            rollout_id,
            lambda store: store.query_attempts(
                rollout_id, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset
            ),
        )

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id."""
        return await self._on(rollout_id, lambda store: store.get_latest_attempt(rollout_id))

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
        return await self._on(
            rollout_id,
            lambda store: store.update_attempt(
                rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata
            ),
        )

    # --- Spans

    async def add_span(self, span: Span) -> Span | None:
        """Store a span."""
        return next(iter(await self.add_many_spans([span])), None)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, in one transaction for each shard; all are checked before any is stored."""
        spans = await entered(spans)
        parts: dict[Shard, list[Span]] = {}
        for rollout_id, group in _by_rollout(spans).items():
            check_text(rollout_id=rollout_id)
            parts.setdefault(await self._locations.rollout(rollout_id), []).extend(group)
        if len(parts) > 1:
            await self._shards.call_all({shard: _checking(part) for shard, part in parts.items()})
        elif parts:
            ((shard, _),) = parts.items()
            return await shard.call(lambda store: store.add_many_spans(spans))
        stored = await self._shards.call_all(
            {shard: lambda store, part=part: store.add_many_spans(part) for shard, part in parts.items()}
        )
        by_key = {_key(span): span for part in stored.values() for span in part}
        return [by_key.pop(_key(span)) for span in spans if _key(span) in by_key]

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
        check_texts("rollout_id", [rollout_id for rollout_id, _ in rollout_attempt_ids])
        parts: dict[Shard, list[tuple[str, str]]] = {}
        shards: list[Shard] = []
        for pair in rollout_attempt_ids:
            shards.append(await self._locations.rollout(pair[0]))
            parts.setdefault(shards[-1], []).append(pair)
        reserved = await self._shards.call_all(
            {shard: lambda store, part=part: store.get_many_span_sequence_ids(part) for shard, part in parts.items()}
        )
        left = {shard: iter(numbers) for shard, numbers in reserved.items()}
        return [next(left[shard]) for shard in shards]

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> Page[Span]:
        """Return spans of a rollout or an attempt."""
        return await self._on(
            rollout_id,
            lambda store: store.query_spans(
                rollout_id,
                attempt_id,
                trace_id=trace_id,
                trace_id_contains=trace_id_contains,
                span_id=span_id,
                span_id_contains=span_id_contains,
                parent_id=parent_id,
                parent_id_contains=parent_id_contains,
                name=name,
                name_contains=name_contains,
                filter_logic=filter_logic,
                limit=limit,
                offset=offset,
                sort_by=sort_by,
                sort_order=sort_order,
            ),
        )

    async def drop_spans(self, rollout_id: str) -> int:
        """Remove the spans of a finished rollout."""
        return await self._on(rollout_id, lambda store: store.drop_spans(rollout_id))

    # --- Resources

    async def add_resources(self, resources: NamedResources, request_id: str | None = None) -> ResourcesUpdate:
        """Store resources under a new id, on every shard."""
        return await self.update_resources(f"rs-{uuid4().hex[:16]}", resources, request_id)

    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a new version of resources, on every shard."""
        check_ids(resources_id=resources_id, request_id=request_id)
        return await self._resources.update(resources_id, encode(resources, "resources"), request_id)

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[ResourcesUpdate]:
        """Return the current versions of resources, which every shard has."""
        shard = (await self._resources.agreed())[0]
        return await shard.call(
            lambda store: store.query_resources(
                resources_id=resources_id,
                resources_id_contains=resources_id_contains,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
            )
        )

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """Return one version of resources."""
        check_text(resources_id=resources_id)
        return await self._resources.by_id(resources_id, version)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources stored last."""
        return await self._resources.latest()

    # --- Workers

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Worker]:
        """Return workers, each merged from the shards that know it."""
        query = workers_query(status_in, worker_id_contains, filter_logic, sort_by, sort_order, limit, offset)
        return await page_of_workers(self._shards, query)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return one worker, merged from the shards that know it."""
        check_text(worker_id=worker_id)
        return await find_worker(self._shards, worker_id)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat on the worker's own shard."""
        check_ids(worker_id=worker_id)
        shard = await self._shards.first_reachable(worker_id)
        recorded = await shard.call(lambda store: store.update_worker(worker_id, heartbeat_stats))
        return await find_worker(self._shards, worker_id) or recorded


def _part_of_rollouts(rows: Rows, query: Query) -> Part[Rollout]:
    found, total = rows.select_rollouts(query)
    positions = rows.positions(found)
    places = [Place.of(row, position, query) for row, position in zip(found, positions, strict=True)]
    return Part(to_rollouts(rows, found), places, total)


def _by_rollout(spans: Sequence[Span]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(span.rollout_id, []).append(span)
    return groups


def _key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


def _checking(spans: Sequence[Span]) -> Callable[[LocalStore], Awaitable[None]]:
    """Return a call that raises the error for spans which the shard would refuse."""
    keys = list({(span.rollout_id, span.attempt_id): None for span in spans})

    def check(rows: Rows) -> None:
        wrong = problem(spans, rows.attempts(keys), None, partial(missing_attempt, rows))
        if wrong is not None and not isinstance(wrong, MENDABLE):
            raise wrong

    return lambda store: store.transact(check, write=False)
