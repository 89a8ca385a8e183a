"""`QueueView`: the part of a store that belongs to one of the runs that share it.

In every call that creates, claims or queries rollouts, the view names its own queue. Everything else is passed on to
the store. Ids are those of the store, so runs must use different ids for their rollouts and resources.
"""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from leyden.core.data.page import Page
from leyden.core.data.resources import NamedResources, ResourcesUpdate
from leyden.core.data.rollout import (
    AttemptedRollout,
    EnqueueRollout,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Task,
)
from leyden.core.store.arguments import FilterLogic, SortOrder
from leyden.core.store.base import LightningStore
from leyden.core.store.common.argument_types import ArgumentChecks
from leyden.core.store.text import check_queue

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_NO_RESOURCES = ""
"""In the place of the id of a rollout's resources: assign none, instead of the latest of the whole store."""


def _passed_on(method: F) -> F:
    """Return a method of `QueueView` that calls `method`, which is one of the interface, on the store."""
    name = method.__name__

    @wraps(method, updated=())  # without the attribute that marks it as abstract
    def call(self: "QueueView", *args: Any, **named: Any) -> Awaitable[Any]:
        # it becomes a method of the class
        return getattr(self._store, name)(*args, **named)  # pyright: ignore[reportPrivateUsage]

    return cast("F", call)


class QueueView(ArgumentChecks, LightningStore):
    """The rollouts of one queue of `store`, and the resources that were stored through this view.

    Rollouts are created, claimed and queried in `queue` only, whatever queue the caller names. The resources that were
    stored last through this view count as the latest; a rollout without a resources id gets these, or none. The view
    keeps them in memory: where a run is resumed with a new view, `get_latest_resources` returns None until something is
    stored. Calls with the id of a rollout, an attempt or resources are passed on, whatever queue the rollout is in.
    Raises UsageError for a `queue` that is not a name.
    """

    def __init__(self, store: LightningStore, queue: str) -> None:
        check_queue(queue)
        self._store, self._queue = store, queue
        self._lock = threading.Lock()
        self._latest: tuple[str, int] | None = None
        """Id and version of the resources that were stored last."""
        self._versions: dict[str, int] = {}
        """Highest version by id, by which the answer to a repeated request is recognised."""

    def __repr__(self) -> str:
        return f"QueueView({self._store!r}, {self._queue!r})"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._queue

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Those of the store."""
        return self._store.capabilities

    def otlp_traces_endpoint(self) -> str | None:
        """Return the store's URL for OTLP traces."""
        return self._store.otlp_traces_endpoint()

    async def close(self) -> None:
        """Close the store, also for its other views."""
        await self._store.close()

    statistics = _passed_on(LightningStore.statistics)

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
        """Create a rollout of this queue with its first attempt."""
        check_queue(queue)
        return await self._store.start_rollout(
            input, mode, self._resources_id(resources_id), config, metadata, worker_id, request_id, self._queue
        )

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
        """Put a rollout at the end of this queue."""
        check_queue(queue)
        return await self._store.enqueue_rollout(
            input, mode, self._resources_id(resources_id), config, metadata, rollout_id, self._queue
        )

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Do `enqueue_rollout` for each, in order, in one transaction."""
        for request in rollouts:
            check_queue(request.queue)
        own = [
            replace(request, resources_id=self._resources_id(request.resources_id), queue=self._queue)
            for request in rollouts
        ]
        return await self._store.enqueue_many_rollouts(own)

    async def dequeue_rollout(
        self, worker_id: str | None = None, request_id: str | None = None, queue: str = ""
    ) -> AttemptedRollout | None:
        """Claim the oldest rollout of this queue."""
        check_queue(queue)
        return await self._store.dequeue_rollout(worker_id, request_id, self._queue)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        timeout: float = 0.0,
        request_id: str | None = None,
        queue: str = "",
    ) -> list[AttemptedRollout]:
        """Claim rollouts of this queue, and wait for the first one."""
        check_queue(queue)
        return await self._store.dequeue_many_rollouts(
            limit=limit, worker_id=worker_id, timeout=timeout, request_id=request_id, queue=self._queue
        )

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
        """Return rollouts of this queue."""
        if queue is not None:
            check_queue(queue)
        return await self._store.query_rollouts(
            status_in=status_in,
            rollout_id_in=rollout_id_in,
            rollout_id_contains=rollout_id_contains,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            status=status,
            rollout_ids=rollout_ids,
            queue=self._queue,
        )

    start_attempt = _passed_on(LightningStore.start_attempt)
    get_rollout_by_id = _passed_on(LightningStore.get_rollout_by_id)
    find_attempt = _passed_on(LightningStore.find_attempt)
    update_rollout = _passed_on(LightningStore.update_rollout)
    wait_for_rollouts = _passed_on(LightningStore.wait_for_rollouts)

    # --- Attempts and spans

    query_attempts = _passed_on(LightningStore.query_attempts)
    get_latest_attempt = _passed_on(LightningStore.get_latest_attempt)
    update_attempt = _passed_on(LightningStore.update_attempt)
    add_span = _passed_on(LightningStore.add_span)
    add_many_spans = _passed_on(LightningStore.add_many_spans)
    add_otel_span = _passed_on(LightningStore.add_otel_span)
    get_next_span_sequence_id = _passed_on(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _passed_on(LightningStore.get_many_span_sequence_ids)
    query_spans = _passed_on(LightningStore.query_spans)
    drop_spans = _passed_on(LightningStore.drop_spans)

    # --- Resources

    async def add_resources(self, resources: NamedResources, request_id: str | None = None) -> ResourcesUpdate:
        """Store resources under a new id; they become the latest of this view."""
        return self._noted(await self._store.add_resources(resources, request_id))

    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a new version under an existing or new id; it becomes the latest of this view."""
        return self._noted(await self._store.update_resources(resources_id, resources, request_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources that were stored last through this view; None where there are none yet."""
        latest = self._latest
        return None if latest is None else await self._store.get_resources_by_id(*latest)

    def _noted(self, stored: ResourcesUpdate) -> ResourcesUpdate:
        """Note what was stored, unless a later call has stored a newer version."""
        with self._lock:
            if stored.version > self._versions.get(stored.resources_id, 0):
                self._versions[stored.resources_id] = stored.version
                self._latest = stored.resources_id, stored.version
        return stored

    def _resources_id(self, given: str | None) -> str:
        if given is not None:
            return given
        return _NO_RESOURCES if self._latest is None else self._latest[0]

    query_resources = _passed_on(LightningStore.query_resources)
    get_resources_by_id = _passed_on(LightningStore.get_resources_by_id)

    # --- Workers

    query_workers = _passed_on(LightningStore.query_workers)
    get_worker_by_id = _passed_on(LightningStore.get_worker_by_id)
    update_worker = _passed_on(LightningStore.update_worker)

    # --- Runs, metrics and policy versions

    add_run = _passed_on(LightningStore.add_run)
    update_run = _passed_on(LightningStore.update_run)
    rewind_run = _passed_on(LightningStore.rewind_run)
    query_runs = _passed_on(LightningStore.query_runs)
    get_run_by_id = _passed_on(LightningStore.get_run_by_id)
    add_metrics = _passed_on(LightningStore.add_metrics)
    query_metrics = _passed_on(LightningStore.query_metrics)
    add_policy_versions = _passed_on(LightningStore.add_policy_versions)
    update_policy_version = _passed_on(LightningStore.update_policy_version)
    query_policy_versions = _passed_on(LightningStore.query_policy_versions)
