"""Health check: the rule that gives up an attempt which timed out or fell silent; the same for all backends.

`state_and_retry_rules.rollout_after_attempt` decides whether the rollout is tried again.
"""

from dataclasses import dataclass

from leyden.core.data.rollout import AttemptStatus, RolloutConfig, RolloutStatus
from leyden.core.store.state_and_retry_rules import OPEN_ATTEMPT

WATCHED_ROLLOUT: frozenset[RolloutStatus] = frozenset({"preparing", "running"})
"""The health check examines the latest attempt of rollouts in these states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Fields of an attempt that the health check reads."""

    status: AttemptStatus
    start_time: float
    last_heartbeat_time: float | None


def verdict(liveness: Liveness, config: RolloutConfig, now: float) -> AttemptStatus | None:
    """Return the new status of a watched rollout's latest attempt; None when no limit is exceeded."""
    timeout, silence = _limits(liveness, config)
    if timeout is not None and timeout <= now:
        return "timeout"
    return "unresponsive" if silence is not None and silence <= now else None


def latest_heartbeat(before: float | None, now: float) -> float:
    """Return the time of the last sign of life after a new one: never earlier than `before`.

    A deadline computed from it is therefore never too late, and need not be changed.
    """
    return now if before is None else max(before, now)


def deadline(liveness: Liveness, config: RolloutConfig) -> float | None:
    """Return the earliest Unix time at which `verdict` may return a status; None without limits."""
    return min((limit for limit in _limits(liveness, config) if limit is not None), default=None)


def _limits(liveness: Liveness, config: RolloutConfig) -> tuple[float | None, float | None]:
    timeout = silence = None
    if config.timeout_seconds is not None and (liveness.status in OPEN_ATTEMPT or liveness.status == "unresponsive"):
        timeout = liveness.start_time + config.timeout_seconds
    if config.unresponsive_seconds is not None and liveness.status in OPEN_ATTEMPT:
        last = liveness.start_time if liveness.last_heartbeat_time is None else liveness.last_heartbeat_time
        silence = last + config.unresponsive_seconds
    return timeout, silence
