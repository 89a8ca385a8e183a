"""`ReadingStore`: the reading methods of a store, `get_*` and `query_*`, each in one read transaction."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from leyden.core.data.page import Page
from leyden.core.data.resources import ResourcesUpdate
from leyden.core.data.rollout import Attempt, Rollout, RolloutStatus
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.store.arguments import FilterLogic, SortOrder
from leyden.core.store.base import LightningStore
from leyden.core.store.common.argument_types import ArgumentChecks
from leyden.core.store.common.rows import (
    AttemptKey,
    RolloutRow,
    Rows,
    SpanRow,
    to_attempt,
    to_resources,
    to_rollout,
    to_worker,
)
from leyden.core.store.common.span_codec import whole_spans
from leyden.core.store.query import Query, check, conditions
from leyden.core.store.text import check_queue, check_text

T = TypeVar("T")

ROLLOUT_SORTS = frozenset(
    {"rollout_id", "status", "mode", "start_time", "end_time", "resources_id", "resources_version"}
)
ATTEMPT_SORTS = frozenset(
    {"rollout_id", "attempt_id", "sequence_id", "start_time", "end_time", "status", "worker_id", "last_heartbeat_time"}
)
SPAN_SORTS = frozenset(
    {
        "rollout_id",
        "attempt_id",
        "sequence_id",
        "trace_id",
        "span_id",
        "parent_id",
        "name",
        "start_time",
        "end_time",
    }
)
RESOURCES_SORTS = frozenset({"resources_id", "version", "create_time", "update_time"})
WORKER_SORTS = frozenset(
    {
        "worker_id",
        "status",
        "last_heartbeat_time",
        "last_dequeue_time",
        "last_busy_time",
        "last_idle_time",
        "current_rollout_id",
        "current_attempt_id",
    }
)


class ReadingStore(ArgumentChecks, LightningStore):
    """Runs every reading method in one read transaction, after the health check."""

    name = ""
    """Kind of the store, as in the scheme of its URI."""

    def __init__(self) -> None:
        self._opened = time.monotonic()

    @abstractmethod
    async def _read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on committed data after the health check, and return its result."""

    async def statistics(self) -> dict[str, Any]:
        """Return counts and the kind of the store."""
        counts = await self._read(lambda rows: dict[str, Any](rows.counts()))
        return {"name": self.name, "uptime": time.monotonic() - self._opened, **counts}

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
        """Return rollouts with their latest attempts."""
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

        def work(rows: Rows) -> Page[Rollout]:
            found, total = rows.select_rollouts(query)
            records = to_rollouts(rows, found)
            return Page(items=records, limit=limit, offset=offset, total=total)

        return await self._read(work)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return one rollout."""
        check_text(rollout_id=rollout_id)

        def work(rows: Rows) -> Rollout | None:
            return next(iter(to_rollouts(rows, list(rows.rollouts([rollout_id]).values()))), None)

        return await self._read(work)

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout."""
        return await self._read(finding_attempt(rollout_id, attempt_id))

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
        query = Query(within={"rollout_id": rollout_id}, sort_by=sort_by, order=sort_order, limit=limit, offset=offset)
        check(query, ATTEMPT_SORTS)
        return await self._read(lambda rows: query.page(rows.select_attempts(query), to_attempt))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id."""
        check_text(rollout_id=rollout_id)

        def work(rows: Rows) -> Attempt | None:
            found = rows.latest_attempts(list(rows.rollouts([rollout_id]).values())).values()
            return next((to_attempt(row) for row in found), None)

        return await self._read(work)

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
        exact = {"trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name}
        contains = {
            "trace_id": trace_id_contains,
            "span_id": span_id_contains,
            "parent_id": parent_id_contains,
            "name": name_contains,
        }
        query = Query(
            within={"rollout_id": rollout_id} if attempt_id is None else _within(rollout_id, attempt_id),
            conditions=conditions(equals=exact, contains=contains),
            logic=filter_logic,
            sort_by=sort_by,
            order=sort_order,
            limit=limit,
            offset=offset,
        )
        check(query, SPAN_SORTS)

        def work(rows: Rows) -> Page[Span]:
            found, total = rows.select_spans(_resolved(rows, query))
            spans = whole_spans(found, partial(_spans_of, rows))
            return Page(items=spans, limit=limit, offset=offset, total=total)

        return await self._read(work)

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
        """Return the current versions of resources."""
        query = Query(
            conditions=conditions(
                equals={"resources_id": resources_id}, contains={"resources_id": resources_id_contains}
            ),
            sort_by=sort_by,
            order=sort_order,
            limit=limit,
            offset=offset,
        )
        check(query, RESOURCES_SORTS)
        return await self._read(lambda rows: query.page(rows.select_resources(query), to_resources))

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """Return one version of resources."""
        check_text(resources_id=resources_id)

        def work(rows: Rows) -> ResourcesUpdate | None:
            row = rows.resources(resources_id, version)
            return None if row is None else to_resources(row)

        return await self._read(work)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources stored last."""

        def work(rows: Rows) -> ResourcesUpdate | None:
            row = rows.resources(None)
            return None if row is None else to_resources(row)

        return await self._read(work)

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
        """Return workers."""
        query = workers_query(status_in, worker_id_contains, filter_logic, sort_by, sort_order, limit, offset)
        return await self._read(lambda rows: query.page(rows.select_workers(query), to_worker))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return one worker."""
        check_text(worker_id=worker_id)

        def work(rows: Rows) -> Worker | None:
            row = rows.worker(worker_id)
            return None if row is None else to_worker(row)

        return await self._read(work)


def rollouts_query(
    status_in: Sequence[RolloutStatus] | None,
    rollout_id_in: Sequence[str] | None,
    rollout_id_contains: str | None,
    filter_logic: FilterLogic,
    sort_by: str | None,
    sort_order: SortOrder,
    limit: int,
    offset: int,
    queue: str | None,
) -> Query:
    """Return the query of `query_rollouts`. Raises ValueError for invalid arguments."""
    if queue is not None:
        check_queue(queue)
    query = Query(
        within={} if queue is None else {"queue": queue},
        conditions=conditions(
            one_of={"status": status_in, "rollout_id": rollout_id_in}, contains={"rollout_id": rollout_id_contains}
        ),
        logic=filter_logic,
        sort_by=sort_by,
        order=sort_order,
        limit=limit,
        offset=offset,
    )
    return check(query, ROLLOUT_SORTS)


def workers_query(
    status_in: Sequence[WorkerStatus] | None,
    worker_id_contains: str | None,
    filter_logic: FilterLogic,
    sort_by: str | None,
    sort_order: SortOrder,
    limit: int,
    offset: int,
) -> Query:
    """Return the query of `query_workers`. Raises ValueError for invalid arguments."""
    query = Query(
        conditions=conditions(one_of={"status": status_in}, contains={"worker_id": worker_id_contains}),
        logic=filter_logic,
        sort_by=sort_by,
        order=sort_order,
        limit=limit,
        offset=offset,
    )
    return check(query, WORKER_SORTS)


def to_rollouts(rows: Rows, found: Sequence[RolloutRow]) -> list[Rollout]:
    """Return rollouts as records for the caller, each with its latest attempt."""
    latest = rows.latest_attempts(found)
    return [to_rollout(row, latest.get(row.rollout_id)) for row in found]


def finding_attempt(rollout_id: str, attempt_id: str) -> Callable[[Rows], tuple[Rollout, Attempt] | None]:
    """Return a function that looks up an attempt with its rollout; raises UsageError for an invalid id."""
    check_text(rollout_id=rollout_id, attempt_id=attempt_id)

    def work(rows: Rows) -> tuple[Rollout, Attempt] | None:
        row = rows.rollouts([rollout_id]).get(rollout_id)
        attempt = rows.attempts([(rollout_id, attempt_id)]).get((rollout_id, attempt_id))
        if row is None or attempt is None:
            return None
        latest = attempt if attempt.sequence_id == row.attempts else rows.latest_attempts([row])[rollout_id]
        return to_rollout(row, latest), to_attempt(attempt)

    return work


LATEST = "latest"
"""In the place of an attempt id: the rollout's latest attempt."""


def _spans_of(rows: Rows, attempt: AttemptKey) -> list[SpanRow]:
    return rows.select_spans(Query(within=_within(*attempt)))[0]


def _within(rollout_id: str, attempt_id: str) -> dict[str, str]:
    return {"rollout_id": rollout_id, "attempt_id": attempt_id}


def _resolved(rows: Rows, query: Query) -> Query:
    """Return the query with the id of the latest attempt in the place of `latest`.

    For a rollout without attempts, `latest` stays and matches nothing.
    """
    if query.within.get("attempt_id") != LATEST:
        return query
    rollout_id = query.within["rollout_id"]
    latest = rows.latest_attempts(list(rows.rollouts([rollout_id]).values())).get(rollout_id)
    return query if latest is None else replace(query, within=_within(rollout_id, latest.attempt_id))
