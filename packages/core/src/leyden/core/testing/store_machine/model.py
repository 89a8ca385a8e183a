"""`Model`: a reference implementation of `LightningStore`, with the expected answers and states of every method.

Each method takes the arguments of the store's method. Ids that the store chooses are taken from `given`, the store's
answer. Attempts are named by `states.name_of`.
"""

from collections.abc import Sequence
from typing import Any, cast

from msgspec import UNSET
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan

from leyden.core.data.page import Page
from leyden.core.data.resources import NamedResources, ResourcesUpdate
from leyden.core.data.rollout import FINISHED_ROLLOUT, Attempt, EnqueueRollout, Rollout, RolloutConfig, RolloutStatus
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker
from leyden.core.errors import CallRefused, IllegalMove, NotFound
from leyden.core.testing.store_machine.questions import answer
from leyden.core.testing.store_machine.records import RecordsModel
from leyden.core.testing.store_machine.states import RolloutNow, States

COUNTED = (
    "total_rollouts",
    "total_attempts",
    "total_spans",
    "total_resources",
    "total_workers",
    "queue_length",
)


class Model(States, RecordsModel):
    """A store that consists of plain lists and dicts."""

    def __init__(self) -> None:
        States.__init__(self)
        RecordsModel.__init__(self)
        self.resources: dict[str, list[ResourcesUpdate]] = {}
        """Versions by id; the ids in the order in which they were last stored."""
        self.beside: frozenset[str] = frozenset()
        """Rollouts that a claim may skip, because concurrent calls change or claim them."""

    def statistics(self, given: object) -> dict[str, int]:
        """Return the counts."""
        rollouts = self.rollouts.values()
        counts = (
            len(rollouts),
            sum(len(rollout.attempts) for rollout in rollouts),
            sum(len(rollout.spans) for rollout in rollouts),
            len(self.resources),
            len(self.workers),
            self.queued,
        )
        return dict(zip(COUNTED, counts, strict=True))

    # --- Queues

    def start_rollout(self, given: object, worker_id: str | None = None, **request: Any) -> Rollout:
        """Create a rollout with its first attempt."""
        rollout = self._made(EnqueueRollout(**request, rollout_id=_id(given)), "preparing")
        self.begin_attempt(rollout, worker_id)
        if worker_id:
            self.settle(worker_id, "idle")
        return rollout.record()

    def enqueue_rollout(self, given: object, **request: Any) -> Rollout:
        """Queue one rollout."""
        return self.enqueue_many_rollouts([given], [EnqueueRollout(**request)])[0]

    def enqueue_many_rollouts(self, given: object, rollouts: Sequence[EnqueueRollout]) -> list[Rollout]:
        """Queue the new rollouts; raises for an invalid one, without any change."""
        for request in rollouts:
            _check(request.config)
        names = _ids(given)
        assert len(names) == len(rollouts), "not as many rollouts as were given"
        ids: list[str] = []
        for request, name in zip(rollouts, names, strict=True):
            ids.append(request.rollout_id or name)
            if ids[-1] not in self.rollouts:
                self.join_queue(self._made(replace(request, rollout_id=ids[-1]), "queuing"))
        return [self.rollouts[name].record() for name in ids]

    def _made(self, request: EnqueueRollout, status: RolloutStatus) -> RolloutNow:
        _check(request.config)
        resources_id = request.resources_id
        if resources_id is None and self.resources:
            resources_id = list(self.resources)[-1]
        if resources_id == "":
            resources_id = None
        assert request.rollout_id is not None and request.rollout_id not in self.rollouts, "an id was given twice"
        rollout = RolloutNow(
            rollout_id=request.rollout_id,
            input=request.input,
            start_time=self.now,
            mode=request.mode,
            resources_id=resources_id,
            resources_version=self._version(resources_id),
            status=status,
            config=request.config or RolloutConfig(),
            metadata=request.metadata or {},
            queue=request.queue,
        )
        self.rollouts[rollout.rollout_id] = rollout
        return rollout

    def _version(self, resources_id: str | None) -> int | None:
        return None if resources_id not in self.resources else self.resources[resources_id][-1].version

    def dequeue_rollout(self, given: object, worker_id: str | None = None, queue: str = "") -> Rollout | None:
        """Claim one rollout."""
        claims = self.dequeue_many_rollouts([given], limit=1, worker_id=worker_id, queue=queue)
        return claims[0] if claims else None

    def dequeue_many_rollouts(
        self, given: object, *, limit: int = 1, worker_id: str | None = None, timeout: float = 0.0, queue: str = ""
    ) -> list[Rollout]:
        """Claim the oldest rollouts of a queue; equally old ones in any order.

        Rollouts in `beside` may be skipped.
        """
        if limit <= 0:
            return []
        chosen = _ids(given)
        claimed: list[RolloutNow] = []
        while (groups := self.queues.get(queue)) and len(claimed) < limit:
            if chosen and len(claimed) == len(chosen) and self.beside.issuperset(set[str]().union(*groups)):
                break
            wish = chosen[len(claimed)] if len(claimed) < len(chosen) else ""
            rollout = self.rollouts[wish if self._is_next(wish, groups) else min(groups[0])]
            self.begin_attempt(rollout, worker_id)
            claimed.append(rollout)
        if worker_id:
            self.settle(worker_id, "idle", claimed=True)
        return [rollout.record() for rollout in claimed]

    def _is_next(self, rollout_id: str, groups: Sequence[set[str]]) -> bool:
        position = next((n for n, group in enumerate(groups) if rollout_id in group), -1)
        return position >= 0 and self.beside.issuperset(set[str]().union(*groups[:position]))

    def start_attempt(self, given: object, rollout_id: str, worker_id: str | None = None) -> Rollout:
        """Start a further attempt; raises IllegalMove for a cancelled rollout."""
        rollout = self.found(rollout_id)
        self.move_rollout(rollout, "preparing")
        self.begin_attempt(rollout, worker_id)
        if worker_id:
            self.settle(worker_id, "idle")
        return rollout.record()

    # --- Manual changes

    def update_rollout(self, given: object, rollout_id: str, **fields: Any) -> Rollout:
        """Change fields of a rollout."""
        if "config" in fields:
            _check(fields["config"])
        rollout = self.found(rollout_id)
        self.move_rollout(rollout, fields.pop("status", rollout.status))
        if "metadata" in fields:
            fields["metadata"] = fields["metadata"] or {}
        if "resources_id" in fields:
            fields["resources_version"] = self._version(fields["resources_id"])
        for name, value in fields.items():
            setattr(rollout, name, value)
        return rollout.record()

    def update_attempt(self, given: object, rollout_id: str, attempt_id: str, **fields: Any) -> Attempt:
        """Change fields of an attempt."""
        attempt = self.found_attempt(rollout_id, attempt_id)
        self.change_attempt(self.found(rollout_id), attempt, fields)
        return attempt.record()

    def update_worker(self, given: object, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        """Record a heartbeat."""
        if heartbeat_stats is None:
            raise TypeError
        worker = replace(self.workers.get(worker_id, Worker(worker_id=worker_id)), last_heartbeat_time=self.now)
        if heartbeat_stats is not UNSET:
            worker = replace(worker, heartbeat_stats=heartbeat_stats)
        self.workers[worker_id] = worker
        return worker

    def add_resources(self, given: object, resources: NamedResources) -> ResourcesUpdate:
        """Store resources under a new id."""
        name = given.resources_id if isinstance(given, ResourcesUpdate) else ""
        assert name not in self.resources, "an id was given twice"
        return self.update_resources(given, name, resources)

    def update_resources(self, given: object, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Store a new version of resources."""
        versions = self.resources.pop(resources_id, [])
        update = ResourcesUpdate(
            resources_id=resources_id,
            version=len(versions) + 1,
            create_time=versions[0].create_time if versions else self.now,
            update_time=self.now,
            resources=resources,
        )
        self.resources[resources_id] = [*versions, update]
        return update

    # --- Spans

    def add_span(self, given: object, span: Span) -> Span | None:
        """Store one span."""
        stored = self.add_many_spans(given, [span])
        return stored[0] if stored else None

    def add_otel_span(
        self, given: object, rollout_id: str, attempt_id: str, readable_span: ReadableSpan, sequence_id: int | None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK."""
        assert readable_span.context is not None and readable_span.start_time is not None
        span = Span(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id or 0,
            trace_id=f"{readable_span.context.trace_id:032x}",
            span_id=f"{readable_span.context.span_id:016x}",
            name=readable_span.name,
            start_time=readable_span.start_time / 1e9,
        )
        return self.add_span(given, span)

    def add_many_spans(self, given: object, spans: Sequence[Span]) -> list[Span]:
        """Store all spans, or none; a span that is stored already changes nothing."""
        for span in spans:
            if span.attempt_id == "latest":
                raise NotFound
            self.found_attempt(span.rollout_id, span.attempt_id)
            if span.sequence_id < 0:
                raise CallRefused
        stored: list[Span] = []
        for span in spans:
            rollout = self.rollouts[span.rollout_id]
            if any((have.attempt_id, have.span_id) == (span.attempt_id, span.span_id) for have in rollout.spans):
                continue
            numbered = replace(span, sequence_id=span.sequence_id or rollout.counter + 1)
            rollout.counter = max(rollout.counter, numbered.sequence_id)
            rollout.spans.append(numbered)
            stored.append(numbered)
        for span in stored:
            self.record_heartbeat(self.rollouts[span.rollout_id], self.found_attempt(span.rollout_id, span.attempt_id))
        return stored

    def get_next_span_sequence_id(self, given: object, rollout_id: str, attempt_id: str) -> int:
        """Reserve a number."""
        return self.get_many_span_sequence_ids(given, [(rollout_id, attempt_id)])[0]

    def get_many_span_sequence_ids(self, given: object, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Reserve numbers, all or none."""
        rollouts = [self.found(rollout_id) for rollout_id, _ in rollout_attempt_ids]
        numbers: list[int] = []
        for rollout in rollouts:
            rollout.counter += 1
            numbers.append(rollout.counter)
        return numbers

    def drop_spans(self, given: object, rollout_id: str) -> int:
        """Remove the spans, but do not reuse their numbers."""
        rollout = self.found(rollout_id)
        if rollout.status not in FINISHED_ROLLOUT:
            raise IllegalMove
        removed, rollout.spans = len(rollout.spans), []
        return removed

    # --- Queries

    def query_rollouts(
        self,
        given: object,
        *,
        status: Any = None,
        rollout_ids: Any = None,
        status_in: Any = None,
        rollout_id_in: Any = None,
        rollout_id_contains: str | None = None,
        queue: str | None = None,
        **paging: Any,
    ) -> Page[Rollout]:
        """Return a page of rollouts; the newer names of the filters override the older ones."""
        filters = {
            "status_in": status if status_in is None else status_in,
            "rollout_id_in": rollout_ids if rollout_id_in is None else rollout_id_in,
            "rollout_id_contains": rollout_id_contains,
        }
        records = [rollout.record() for rollout in self.rollouts.values() if queue in (None, rollout.queue)]
        return answer(records, filters, **paging)

    def query_attempts(self, given: object, rollout_id: str, **paging: Any) -> Page[Attempt]:
        """Return a page of attempts, sorted by number by default."""
        paging = {"sort_by": "sequence_id"} | paging
        attempts = self.rollouts[rollout_id].attempts if rollout_id in self.rollouts else []
        return answer([attempt.record() for attempt in attempts], {}, **paging)

    def query_spans(self, given: object, rollout_id: str, attempt_id: str | None = None, **filters: Any) -> Page[Span]:
        """Return a page of spans, sorted by number by default."""
        rollout = self.rollouts.get(rollout_id)
        spans = [] if rollout is None else rollout.spans
        if attempt_id == "latest" and rollout is not None and rollout.attempts:
            attempt_id = rollout.attempts[-1].name
        if attempt_id is not None:
            spans = [span for span in spans if span.attempt_id == attempt_id]
        names = ("filter_logic", "sort_by", "sort_order", "limit", "offset")
        paging: dict[str, Any] = {name: filters.pop(name) for name in names if name in filters}
        paging.setdefault("sort_by", "sequence_id")
        return answer(spans, filters, **paging)

    def query_resources(
        self, given: object, resources_id: str | None = None, resources_id_contains: str | None = None, **paging: Any
    ) -> Page[ResourcesUpdate]:
        """Return a page of current versions."""
        filters = {"resources_id": resources_id, "resources_id_contains": resources_id_contains}
        return answer([versions[-1] for versions in self.resources.values()], filters, **paging)

    def query_workers(
        self, given: object, status_in: Any = None, worker_id_contains: str | None = None, **paging: Any
    ) -> Page[Worker]:
        """Return a page of workers."""
        return answer(
            self.workers.values(), {"status_in": status_in, "worker_id_contains": worker_id_contains}, **paging
        )

    def get_rollout_by_id(self, given: object, rollout_id: str) -> Rollout | None:
        """Return one rollout."""
        return self.rollouts[rollout_id].record() if rollout_id in self.rollouts else None

    def get_latest_attempt(self, given: object, rollout_id: str) -> Attempt | None:
        """Return the latest attempt."""
        rollout = self.rollouts.get(rollout_id)
        return rollout.attempts[-1].record() if rollout is not None and rollout.attempts else None

    def find_attempt(self, given: object, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout; with the store's statuses, since these may be outdated."""
        try:
            attempt = self.found_attempt(rollout_id, attempt_id) if attempt_id != "latest" else None
        except NotFound:
            attempt = None
        if attempt is None:
            return None
        rollout, found = self.rollouts[rollout_id].record(), attempt.record()
        if isinstance(given, tuple):
            near = cast("tuple[Rollout, Attempt]", given)
            same = (near[0].rollout_id, near[0].input, near[1].attempt_id, near[1].start_time)
            if same == (rollout.rollout_id, rollout.input, found.attempt_id, found.start_time):
                return near
        return rollout, found

    def get_resources_by_id(
        self, given: object, resources_id: str, version: int | None = None
    ) -> ResourcesUpdate | None:
        """Return one version."""
        versions = self.resources.get(resources_id, [])
        if version is None:
            return versions[-1] if versions else None
        return next((update for update in versions if update.version == version), None)

    def get_latest_resources(self, given: object) -> ResourcesUpdate | None:
        """Return the resources stored last."""
        return list(self.resources.values())[-1][-1] if self.resources else None

    def get_worker_by_id(self, given: object, worker_id: str) -> Worker | None:
        """Return one worker."""
        return self.workers.get(worker_id)

    def wait_for_rollouts(self, given: object, rollout_ids: Sequence[str], timeout: float | None) -> list[Rollout]:
        """Return the finished rollouts, each once, in the order of `rollout_ids`."""
        known = [self.rollouts[name] for name in dict.fromkeys(rollout_ids) if name in self.rollouts]
        return [rollout.record() for rollout in known if rollout.status in FINISHED_ROLLOUT]


def _id(given: object) -> str:
    """Return the id that the store chose for a rollout."""
    return given.rollout_id if isinstance(given, Rollout) else ""


def _ids(given: object) -> list[str]:
    return [_id(one) for one in cast("list[object]", given)] if isinstance(given, list) else []


def _check(config: RolloutConfig | None) -> None:
    if config is not None and config.max_attempts < 1:
        raise CallRefused
