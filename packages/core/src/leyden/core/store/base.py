"""`LightningStore`: the interface of all stores. Names and semantics follow Agent Lightning 0.3's public store.

Every implementation passes `leyden.core.testing.store_contract` unchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from leyden.core.store.run_records import RunRecords

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class LightningStore(RunRecords):
    """Store of rollouts with a queue, attempts, spans, resources and workers; for runs see `RunRecords`.

    For unknown ids, `get_*` return None and queries return an empty page. Every method that writes raises `NotFound`.
    A status change outside the tables of `data.rollout` raises `IllegalMove`.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Mapping[str, bool]:
        """Features of this store by name: `durable`, `multi_process`, `otlp_traces`."""

    @abstractmethod
    async def close(self) -> None:
        """Release files and connections; the store cannot be used afterwards."""

    @abstractmethod
    async def statistics(self) -> dict[str, Any]:
        """Return counts of the stored objects, and the kind of the store.

        Keys: `name` (`memory`, `sqlite`, `postgresql`, `redis` or `shard`), `uptime` (seconds since its process opened
        it), `total_rollouts`, `total_attempts`, `total_spans`, `total_resources`, `total_workers`, `queue_length` (of
        all queues together). A store in memory adds `span_bytes`, `evicted_attempts` and `evicted_spans`. One over
        shards adds `shards`.
        """

    def otlp_traces_endpoint(self) -> str | None:
        """Return the URL that accepts OTLP traces for this store, or None."""
        return None

    # --- Rollouts and the queues

    @abstractmethod
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
        """Create a rollout with its first attempt, without queueing it; a retry waits in `queue`.

        A `request_id` makes the call idempotent: a second call with the same id returns the first call's attempt.
        Raises CallRefused where that attempt has ended, or is no longer the latest. Other methods with a `request_id`
        also return what their first call made, as far as its attempts are open and the latest.
        """

    @abstractmethod
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
        """Put a rollout at the end of a queue and return it.

        Without a `resources_id`, the latest resources are assigned; with an empty one, none. With a `rollout_id` that
        is already stored, returns that rollout and changes nothing. A queue exists as soon as it is named; its name has
        only ASCII letters, digits, `.`, `_` and `-`. The empty name is the usual queue. Raises UsageError for any other
        name. A rollout stays in its queue: it returns there when it is retried or requeued.
        """

    @abstractmethod
    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Do `enqueue_rollout` for each, in order, in one transaction; return the rollouts."""

    @abstractmethod
    async def dequeue_rollout(
        self, worker_id: str | None = None, request_id: str | None = None, queue: str = ""
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout of a queue with a new attempt; return None when the queue is empty."""

    @abstractmethod
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

        Rollouts that other calls claim or change at the same moment may be skipped. Raises CallRefused where a claim
        with this `request_id` was made from another queue.
        """

    @abstractmethod
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        """Start a further attempt manually, in any state of the rollout; ignores `max_attempts`.

        Raises IllegalMove for a cancelled rollout.
        """

    @abstractmethod
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
        """Return rollouts: `AttemptedRollout` with the latest attempt, or `Rollout` where there is none.

        With a `queue`, only rollouts of that queue are returned, whatever `filter_logic` is; None stands for all
        queues. Unsorted results come in the order of creation. Raises ValueError for an unknown `sort_by`.
        """

    @abstractmethod
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return one rollout in the form of `query_rollouts`, or None."""

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout, or None; cheap enough to be called for every model call.

        States are at least as new as this process's last write. Another process's write may be missing for as long as
        waiting callers may miss it. Heartbeat times may be old.
        """
        rollout = await self.get_rollout_by_id(rollout_id)
        if rollout is None:
            return None
        if isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id == attempt_id:
            return rollout, rollout.attempt
        attempts = await self.query_attempts(rollout_id)
        return next(((rollout, attempt) for attempt in attempts if attempt.attempt_id == attempt_id), None)

    @abstractmethod
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
        """Change fields and return the rollout; `metadata` is replaced, not merged.

        The status `requeuing` puts the rollout back in the queue.
        """

    @abstractmethod
    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all are finished; return those that are finished within `timeout` seconds.

        Unknown ids are left out.
        """

    # --- Attempts

    @abstractmethod
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

    @abstractmethod
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id, or None."""

    @abstractmethod
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        """Change fields of an attempt and return it; the rollout follows its latest attempt.

        `attempt_id` may be `"latest"`.
        """

    # --- Spans

    @abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Store a span, which also counts as a heartbeat; return it, or None when it is an exact duplicate."""

    @abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans of any attempts in one transaction; return the stored spans without duplicates."""

    @abstractmethod
    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: ReadableSpan, sequence_id: int | None = None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK; return it as stored, or None when it is an exact duplicate."""

    @abstractmethod
    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve and return the rollout's next span number; each rollout has one counter, from 1."""

    @abstractmethod
    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Reserve and return one span number for each pair of rollout id and attempt id, in order."""

    @abstractmethod
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
        """Return spans of a rollout, of one of its attempts, or of its `"latest"` attempt."""

    @abstractmethod
    async def drop_spans(self, rollout_id: str) -> int:
        """Remove the spans of a finished rollout and return how many there were; span numbers are not reused.

        All other data of the rollout stay. Raises IllegalMove for a rollout that is not finished.
        """

    # --- Resources

    @abstractmethod
    async def add_resources(self, resources: NamedResources, request_id: str | None = None) -> ResourcesUpdate:
        """Store resources under a new id and return them; they become the latest."""

    @abstractmethod
    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a new version under an existing or new id and return it; it becomes the latest."""

    @abstractmethod
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
        """Return the current version under each id; unsorted results come in the order in which they were stored."""

    @abstractmethod
    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """Return the current version under an id, or the given version, or None.

        A rollout records its version in `resources_version`.
        """

    @abstractmethod
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources added or updated last, or None."""

    # --- Workers

    @abstractmethod
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
        """Return the workers that have claimed a rollout or sent a heartbeat."""

    @abstractmethod
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return one worker, or None."""

    @abstractmethod
    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat and return the worker; its status is derived from attempts and cannot be set."""
