"""Rollouts and attempts: their fields, their statuses, and the tables of allowed status changes.

A rollout is one task for an agent; an attempt is one try at it. The store checks every status change against the tables
here. No other code defines allowed changes.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)

RolloutStatus = Literal["queuing", "preparing", "running", "succeeded", "failed", "requeuing", "cancelled"]
AttemptStatus = Literal["preparing", "running", "succeeded", "failed", "timeout", "unresponsive"]
RolloutMode = Literal["train", "val", "test"]

Task = Any
"""One row of a dataset: any value that JSON can hold, usually a dict."""


class Dataset(Protocol[T_co]):
    """Tasks by their row number, as `Trainer.fit` takes them; a list is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> T_co: ...

    def __iter__(self) -> Iterator[T_co]: ...


ROLLOUT_MOVES: dict[RolloutStatus, frozenset[RolloutStatus]] = {
    "queuing": frozenset({"preparing", "running", "succeeded", "failed", "cancelled"}),
    "preparing": frozenset({"running", "requeuing", "succeeded", "failed", "cancelled"}),
    "running": frozenset({"preparing", "requeuing", "succeeded", "failed", "cancelled"}),
    "requeuing": frozenset({"preparing", "running", "succeeded", "failed", "cancelled"}),
    "failed": frozenset({"requeuing", "preparing", "running", "succeeded"}),
    "succeeded": frozenset({"preparing", "requeuing", "failed"}),
    "cancelled": frozenset(),
}
"""Allowed changes: from each rollout status, its possible next statuses. A status may always be set to itself."""

ATTEMPT_MOVES: dict[AttemptStatus, frozenset[AttemptStatus]] = {
    "preparing": frozenset({"running", "succeeded", "failed", "timeout", "unresponsive"}),
    "running": frozenset({"succeeded", "failed", "timeout", "unresponsive"}),
    "unresponsive": frozenset({"running", "succeeded", "failed", "timeout"}),
    "succeeded": frozenset({"failed"}),
    "failed": frozenset(),
    "timeout": frozenset(),
}
"""Allowed changes: from each attempt status, its possible next statuses. A status may always be set to itself."""

FINISHED_ROLLOUT: frozenset[RolloutStatus] = frozenset({"succeeded", "failed", "cancelled"})
FINISHED_ATTEMPT: frozenset[AttemptStatus] = frozenset({"succeeded", "failed", "timeout"})
QUEUED: frozenset[RolloutStatus] = frozenset({"queuing", "requeuing"})


class RolloutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a rollout: number of attempts, their durations, and which statuses are retried."""

    timeout_seconds: float | None = None
    """An attempt that runs longer than this becomes `timeout`."""
    unresponsive_seconds: float | None = None
    """An attempt without a span or heartbeat for this long becomes `unresponsive`; a later span revives it."""
    max_attempts: int = 1
    """Largest number of attempts, the first included."""
    retry_condition: tuple[AttemptStatus, ...] = ()
    """Attempt statuses that put the rollout back in the queue while attempts are left."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One task for an agent, with its status and its limits."""

    rollout_id: str
    input: Task
    start_time: float
    """Unix seconds at which the rollout was enqueued."""
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    """Version of those resources when they were assigned to the rollout; None when there were none under that id."""
    status: RolloutStatus = "queuing"
    config: RolloutConfig = RolloutConfig()
    metadata: dict[str, Any] = {}
    queue: str = ""
    """Name of the queue in which the rollout waits."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Number of the attempt; 1 for the first."""
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] = {}


class AttemptedRollout(Rollout, frozen=True, kw_only=True):
    """A rollout together with its latest attempt."""

    attempt: Attempt


class ClaimedRollout(AttemptedRollout, frozen=True, kw_only=True):
    """Response of a run's server to a worker that claims a rollout."""

    token: str = ""
    """Proves to the gateway that a call belongs to the attempt."""

    def __repr__(self) -> str:
        return f"ClaimedRollout(rollout_id={self.rollout_id!r}, attempt={self.attempt!r})"


class EnqueueRollout(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments for one rollout of `enqueue_many_rollouts`."""

    input: Task
    mode: RolloutMode | None = None
    resources_id: str | None = None
    """None assigns the latest resources, and the empty text assigns none."""
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    rollout_id: str | None = None
    """An id of the caller's choice, which makes the call idempotent.

    A rollout that is already stored under this id is returned unchanged, whichever queue it is in.
    """
    queue: str = ""
    """Name of the queue in which the rollout waits; see `LightningStore.enqueue_rollout`."""
