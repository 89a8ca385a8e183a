"""`HttpStore`: a client of a store's server, `store.http.server`, as an implementation of the store interface.

A request without an answer is sent again under the same id, and the server returns its first answer.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import msgspec

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
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.errors import CallRefused, StoreError
from leyden.core.store.arguments import UNSET, FilterLogic, SortOrder, Unset
from leyden.core.store.base import LightningStore
from leyden.core.store.common.lifecycle import new_rollout_id
from leyden.core.store.http.claims import UnansweredClaims
from leyden.core.store.http.client_records import HttpRecords
from leyden.core.store.http.client_spans import HttpSpans
from leyden.core.store.http.connection import PATIENCE, Connection
from leyden.core.store.rpc import LONGEST_WAIT, StoreFailure, methods

if TYPE_CHECKING:
    pass

P = ParamSpec("P")
T = TypeVar("T")

_FINAL = frozenset({400, 403, 413})
"""Statuses of calls that would be refused again."""
_FAILURE = msgspec.msgpack.Decoder(StoreFailure)


def _new_id() -> str:
    return uuid4().hex


class HttpStore(HttpRecords, HttpSpans):
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
        line = body[:500].decode("utf-8", "replace").strip()
        raise (CallRefused if status in _FINAL else StoreError)(f"{name}: {line or f'the store answered {status}'}")

    async def statistics(self) -> dict[str, Any]:
        """Return the counts of the server's store."""
        return await self._call(LightningStore.statistics)

    async def start_rollout(
        self,
        input: Task,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout with its first attempt, without queueing it."""
        request = mode, resources_id, config, metadata, worker_id, request_id or _new_id()
        return await self._call(LightningStore.start_rollout, input, *request)

    async def enqueue_rollout(
        self,
        input: Task,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        rollout_id: str | None = None,
    ) -> Rollout:
        """Put a rollout at the end of the queue; the latest resources are assigned unless an id is given."""
        request = EnqueueRollout(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata, rollout_id=rollout_id
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Do `enqueue_rollout` for each, in order, in one transaction."""
        named = [msgspec.structs.replace(item, rollout_id=item.rollout_id or new_rollout_id()) for item in rollouts]
        return await self._call(LightningStore.enqueue_many_rollouts, named)

    async def dequeue_rollout(
        self, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest queued rollout with a new attempt; return None when the queue is empty."""
        return next(iter(await self.dequeue_many_rollouts(worker_id=worker_id, request_id=request_id)), None)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        timeout: float = 0.0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts; wait up to `timeout` seconds for the first one, without polling.

        If the answer to a claim was lost, the worker's next claim returns the rollouts of the lost one.
        """
        end = time.monotonic() + timeout
        while True:
            wait = min(max(end - time.monotonic(), 0.0), LONGEST_WAIT)
            with self._claims.named(worker_id, limit, request_id) as name:
                claimed = await self._call(
                    LightningStore.dequeue_many_rollouts,
                    limit=limit,
                    worker_id=worker_id,
                    timeout=wait,
                    request_id=name,
                )
            if claimed or limit <= 0 or time.monotonic() >= end:
                return claimed

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        """Start a further attempt manually, in any state of the rollout; ignores `max_attempts`."""
        return await self._call(LightningStore.start_attempt, rollout_id, worker_id, request_id or _new_id())

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
    ) -> Page[Rollout]:
        """Return rollouts: `AttemptedRollout` with the latest attempt, or `Rollout` where there is none."""
        return await self._call(
            LightningStore.query_rollouts,
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
        )

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return one rollout in the form of `query_rollouts`, or None."""
        return await self._call(LightningStore.get_rollout_by_id, rollout_id)

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
        """Change fields. `requeuing` puts the rollout back in the queue; `metadata` is replaced, not merged."""
        return await self._call(
            LightningStore.update_rollout, rollout_id, input, mode, resources_id, status, config, metadata
        )

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
            if not missing or not (await self.query_rollouts(rollout_id_in=missing, limit=0)).total:
                return finished

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
        return await self._call(
            LightningStore.query_attempts,
            rollout_id,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id, or None."""
        return await self._call(LightningStore.get_latest_attempt, rollout_id)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        """Change fields of an attempt (`"latest"` is accepted); the rollout follows its latest attempt."""
        return await self._call(
            LightningStore.update_attempt, rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata
        )

    async def add_resources(self, resources: NamedResources, request_id: str | None = None) -> ResourcesUpdate:
        """Store resources under a new id; they become the latest."""
        return await self._call(LightningStore.add_resources, resources, request_id or _new_id())

    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a new version under an existing or new id; it becomes the latest."""
        name = request_id or _new_id()
        return await self._call(LightningStore.update_resources, resources_id, resources, name)

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
        return await self._call(
            LightningStore.query_resources,
            resources_id=resources_id,
            resources_id_contains=resources_id_contains,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        """Return the current version under an id, or the given version, or None."""
        return await self._call(LightningStore.get_resources_by_id, resources_id, version)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources added or updated last, or None."""
        return await self._call(LightningStore.get_latest_resources)

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
        return await self._call(
            LightningStore.query_workers,
            status_in=status_in,
            worker_id_contains=worker_id_contains,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return one worker, or None."""
        return await self._call(LightningStore.get_worker_by_id, worker_id)

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat; status is derived from attempts and cannot be set."""
        return await self._call(LightningStore.update_worker, worker_id, heartbeat_stats)
