"""Workers: the store's records of the processes that run agents.

The store derives a worker's status from attempts; it is never set directly.
"""

from typing import Any, Literal

import msgspec

WorkerStatus = Literal["idle", "busy", "unknown"]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] = {}
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
