"""Changes of rollouts, attempts and workers, as steps within one transaction.

Applies `store.state_and_retry_rules` to rows. Every function checks its arguments before it writes the first row. An
error therefore leaves a backend without rollback unchanged.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from uuid import uuid4

from msgspec.structs import replace

from leyden.core.data.rollout import (
    FINISHED_ATTEMPT,
    FINISHED_ROLLOUT,
    QUEUED,
    Attempt,
    AttemptedRollout,
    EnqueueRollout,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)
from leyden.core.data.worker import WorkerStatus
from leyden.core.errors import NotFound
from leyden.core.store import health_check, state_and_retry_rules
from leyden.core.store.common.rows import (
    EMPTY,
    AttemptRow,
    Changes,
    ResourcesRow,
    RolloutRow,
    Rows,
    WorkerRow,
    config_of,
    encode,
    to_attempt,
    to_attempted_rollout,
    to_rollout,
)

CLOCK = "clock"
"""Topic that is notified when a new deadline was set, which waiting callers must take into account."""


def queue_topic(queue: str) -> str:
    """Return the topic that is notified when there are more rollouts to claim in a queue."""
    return f"queue:{queue}" if queue else "queue"


def new_rollout_id() -> str:
    """Return a new unique id for a rollout."""
    return f"ro-{uuid4().hex[:16]}"


def enqueue(rows: Rows, requests: Sequence[EnqueueRollout], positions: Sequence[int] = ()) -> list[Rollout]:
    """Store and queue new rollouts and return all; a rollout whose id is already stored is returned unchanged.

    On a shard, `positions` has the positions of the rollouts and of their places in the queue, if they are given.
    """
    stored = rows.rollouts([request.rollout_id for request in requests if request.rollout_id is not None])
    new: dict[str, RolloutRow] = {}
    ids: list[str] = []
    resources_of = cache(rows.resources)  # nearly always the same for all
    for request in requests:
        rollout_id = request.rollout_id or new_rollout_id()
        ids.append(rollout_id)
        if rollout_id not in stored and rollout_id not in new:
            new[rollout_id] = _new_rollout(rows, rollout_id, request, "queuing", resources_of)
    if positions:
        first = dict(zip(reversed(ids), reversed(positions), strict=True))
        given = [first[rollout_id] for rollout_id in new]
        rows.given_positions = chain(given, given, rows.given_positions or ())
    rows.insert_rollouts(list(new.values()))
    rows.push(list(new.values()))
    rows.topics.update(map(queue_topic, {row.queue for row in new.values()}))
    latest = rows.latest_attempts(list(stored.values()))
    return [to_rollout(stored.get(name) or new[name], latest.get(name)) for name in ids]


def start(rows: Rows, request: EnqueueRollout, worker_id: str | None) -> AttemptedRollout:
    """Store a new rollout with its first attempt and return it."""
    row = _new_rollout(rows, request.rollout_id or new_rollout_id(), request, "preparing", rows.resources)
    rows.insert_rollouts([row])
    begun = _begin_attempt(rows, row, worker_id)
    if worker_id:
        _settle_worker(rows, worker_id, "idle", {})
    return begun


def claim(rows: Rows, queue: str, limit: int, worker_id: str | None) -> list[AttemptedRollout]:
    """Take up to `limit` rollouts from the head of a queue, each with a new attempt."""
    if limit <= 0:
        return []
    ids = rows.head(queue, limit)
    found = rows.rollouts(ids)
    claimed = [_begin_attempt(rows, found[rollout_id], worker_id) for rollout_id in ids]
    if worker_id:
        _settle_worker(rows, worker_id, "idle", {"last_dequeue_time": rows.now})
    return claimed


def start_attempt(rows: Rows, rollout_id: str, worker_id: str | None) -> AttemptedRollout:
    """Start a further attempt manually, which becomes the latest. Raises NotFound or IllegalMove."""
    row = require_rollout(rows, rollout_id)
    state_and_retry_rules.check_rollout_move(rollout_id, row.status, "preparing")
    begun = _begin_attempt(rows, row, worker_id)
    if worker_id:
        _settle_worker(rows, worker_id, "idle", {})
    return begun


def update_rollout(rows: Rows, rollout_id: str, changes: Changes) -> Rollout:
    """Change fields manually; a new status updates the queue, but not the attempts. Raises NotFound or IllegalMove."""
    row = require_rollout(rows, rollout_id)
    status: RolloutStatus = changes.pop("status", row.status)
    state_and_retry_rules.check_rollout_move(rollout_id, row.status, status)
    if "resources_id" in changes:
        changes["resources_version"] = _resources_version(rows, changes["resources_id"])
    latest = rows.latest_attempts([row]).get(rollout_id)
    return to_rollout(_move_rollout(rows, row, latest, status, changes), latest)


def update_attempt(rows: Rows, rollout_id: str, attempt_id: str, changes: Changes) -> Attempt:
    """Change fields of an attempt; its workers are updated, and so is the rollout if this is its latest attempt.

    Raises NotFound or IllegalMove.
    """
    row = require_rollout(rows, rollout_id)
    if attempt_id == "latest":
        attempt = rows.latest_attempts([row]).get(rollout_id)
    else:
        attempt = rows.attempts([(rollout_id, attempt_id)]).get((rollout_id, attempt_id))
    if attempt is None:
        raise NotFound(f"rollout {rollout_id} has no attempt {attempt_id}")
    state_and_retry_rules.check_attempt_move(attempt.attempt_id, attempt.status, changes.get("status", attempt.status))
    return to_attempt(change_attempt(rows, row, attempt, changes))


def check_health(rows: Rows) -> None:
    """Set overdue latest attempts to `timeout` or `unresponsive`."""
    due = rows.overdue()
    if not due:  # the usual case, and checked with every span
        return
    latest = rows.latest_attempts(due)
    for row in due:
        attempt, config = latest[row.rollout_id], config_of(row)
        status = health_check.verdict(_liveness(attempt), config, rows.now)
        if status is None:
            rows.update_rollout(row.rollout_id, {"deadline": health_check.deadline(_liveness(attempt), config)})
        else:
            change_attempt(rows, row, attempt, {"status": status})


def change_attempt(
    rows: Rows, row: RolloutRow, attempt: AttemptRow, changes: Changes, rollout_status: RolloutStatus | None = None
) -> AttemptRow:
    """Write `changes` to an attempt, and update its workers, and the rollout if this is its latest attempt.

    The rollout gets `rollout_status`, or the status by the state rules. Returns the changed row.
    """
    status = changes.get("status", attempt.status)
    moved = status != attempt.status
    if moved and status in FINISHED_ATTEMPT:
        changes["end_time"] = max(attempt.start_time, rows.now)  # the clock may have been set back
    after = replace(attempt, **changes)
    rows.update_attempt((attempt.rollout_id, attempt.attempt_id), changes)
    if attempt.sequence_id == row.attempts:
        if rollout_status is None:
            rollout_status = row.status
            if moved:
                rollout_status = state_and_retry_rules.rollout_after_attempt(
                    row.status, status, attempt.sequence_id, config_of(row)
                )
        _move_rollout(rows, row, after, rollout_status, {})
    stays_open = state_and_retry_rules.OPEN_ATTEMPT.issuperset((attempt.status, status))
    if (moved and not stays_open) or after.worker_id != attempt.worker_id:
        for worker_id in {attempt.worker_id, after.worker_id} - {None, ""}:
            _settle_worker(rows, str(worker_id), _released(after, worker_id), {}, about=after)
    return after


def require_rollout(rows: Rows, rollout_id: str) -> RolloutRow:
    """Return the rollout's row; raises NotFound."""
    found = rows.rollouts([rollout_id])
    if rollout_id not in found:
        raise NotFound(f"there is no rollout {rollout_id}")
    return found[rollout_id]


def missing_attempt(rows: Rows, rollout_id: str, attempt_id: str) -> NotFound:
    """Return the error for a missing attempt; its message differs where the rollout is missing too."""
    if rollout_id in rows.rollouts([rollout_id]):
        return NotFound(f"rollout {rollout_id} has no attempt {attempt_id}")
    return NotFound(f"there is no rollout {rollout_id}")


def record_heartbeat(rows: Rows, worker_id: str, stats: bytes | None) -> WorkerRow:
    """Record a heartbeat of a worker, with its statistics if it sent any."""
    row = rows.worker(worker_id) or WorkerRow(worker_id=worker_id, heartbeat_stats=EMPTY)
    row = replace(row, last_heartbeat_time=rows.now, heartbeat_stats=row.heartbeat_stats if stats is None else stats)
    rows.put_worker(row)
    return row


def _new_rollout(
    rows: Rows,
    rollout_id: str,
    request: EnqueueRollout,
    status: RolloutStatus,
    resources_of: Callable[[str | None], ResourcesRow | None],
) -> RolloutRow:
    config = request.config or RolloutConfig()
    state_and_retry_rules.check_config(config)
    state_and_retry_rules.check_mode(request.mode)
    resources_id = request.resources_id
    resources = None if resources_id == "" else resources_of(resources_id)
    if not resources_id:
        resources_id = None if resources is None else resources.resources_id
    return RolloutRow(
        rollout_id=rollout_id,
        input=encode(request.input, "the input of a rollout"),
        start_time=rows.now,
        mode=request.mode,
        resources_id=resources_id,
        resources_version=None if resources is None else resources.version,
        status=status,
        config=encode(config, "the config of a rollout"),
        metadata=encode(request.metadata or {}, "the metadata of a rollout"),
        queue=request.queue,
    )


def _resources_version(rows: Rows, resources_id: str | None) -> int | None:
    current = None if resources_id is None else rows.resources(resources_id)
    return None if current is None else current.version


def _begin_attempt(rows: Rows, row: RolloutRow, worker_id: str | None) -> AttemptedRollout:
    _close_superseded(rows, row, row.attempts + 1)
    sequence_id = row.attempts + 1
    attempt = AttemptRow(
        rollout_id=row.rollout_id,
        attempt_id=f"{row.rollout_id}-a{sequence_id}",
        sequence_id=sequence_id,
        start_time=rows.now,
        status="preparing",
        worker_id=worker_id,
        metadata=EMPTY,
    )
    rows.insert_attempt(attempt)
    return to_attempted_rollout(_move_rollout(rows, row, attempt, "preparing", {"attempts": sequence_id}), attempt)


def _close_superseded(rows: Rows, row: RolloutRow, latest: int) -> None:
    """Set earlier attempts that are still open to `unresponsive`, since their processes may be gone.

    Their workers become free. A later span revives such an attempt until the rollout ends.
    """
    if latest < 2:  # the usual case
        return
    for attempt in rows.attempts_of(row.rollout_id):
        if attempt.sequence_id < latest and attempt.status in state_and_retry_rules.OPEN_ATTEMPT:
            rows.update_attempt((attempt.rollout_id, attempt.attempt_id), {"status": "unresponsive"})
            closed = replace(attempt, status="unresponsive")
            if attempt.worker_id:
                _settle_worker(rows, attempt.worker_id, _released(closed, attempt.worker_id), {}, about=closed)


def _move_rollout(
    rows: Rows, row: RolloutRow, latest: AttemptRow | None, status: RolloutStatus, changes: Changes
) -> RolloutRow:
    """Write `changes` and the effects of `status`: end time, deadline, position in the queue, and topics to notify."""
    wanted: Changes = {**changes, "status": status, "deadline": None}
    if status not in FINISHED_ROLLOUT:
        wanted["end_time"] = None
    elif row.status not in FINISHED_ROLLOUT:
        wanted["end_time"] = max(row.start_time, rows.now)
        rows.topics.add(row.rollout_id)
        _close_superseded(rows, row, row.attempts)
    if latest is not None and status in health_check.WATCHED_ROLLOUT:
        wanted["deadline"] = health_check.deadline(_liveness(latest), config_of(replace(row, **changes)))
    if status in QUEUED and row.status not in QUEUED:
        rows.push([row])
        rows.topics.add(queue_topic(row.queue))
    elif status not in QUEUED and row.status in QUEUED:
        rows.drop(row)
    changed = {name: value for name, value in wanted.items() if getattr(row, name) != value}
    if changed.get("deadline") is not None:
        rows.topics.add(CLOCK)
    if changed:
        rows.update_rollout(row.rollout_id, changed)
    return replace(row, **changed)


def _liveness(attempt: AttemptRow) -> health_check.Liveness:
    return health_check.Liveness(
        status=attempt.status, start_time=attempt.start_time, last_heartbeat_time=attempt.last_heartbeat_time
    )


def _released(attempt: AttemptRow, worker_id: str | None) -> WorkerStatus:
    if attempt.worker_id != worker_id or attempt.status in state_and_retry_rules.OPEN_ATTEMPT:
        return "idle"
    return state_and_retry_rules.worker_after_end(attempt.status)


def _settle_worker(
    rows: Rows, worker_id: str, free: WorkerStatus, changes: Changes, about: AttemptRow | None = None
) -> None:
    """Derive a worker's status from its open attempts; `free` is its status without an open attempt.

    If only the attempt `about` has changed, and it is not open, a worker that is busy with another attempt is
    unchanged.
    """
    row = rows.worker(worker_id) or WorkerRow(worker_id=worker_id, heartbeat_stats=EMPTY)
    closed = None if about is None or about.status in state_and_retry_rules.OPEN_ATTEMPT else about.attempt_id
    if closed is not None and row.status == "busy" and row.current_attempt_id != closed:
        return
    held = rows.open_attempt_of(worker_id)
    status = free if held is None else "busy"
    changes = {
        **changes,
        "status": status,
        "current_rollout_id": None if held is None else held.rollout_id,
        "current_attempt_id": None if held is None else held.attempt_id,
    }
    if status == "busy" and (row.status != "busy" or row.current_attempt_id != changes["current_attempt_id"]):
        changes["last_busy_time"] = rows.now
    elif status == "idle" and row.status != "idle":
        changes["last_idle_time"] = rows.now
    rows.put_worker(replace(row, **changes))
