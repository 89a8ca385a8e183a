"""State rules of rollouts, attempts and workers: pure functions over statuses, shared by all backends."""

from typing import get_args

from leyden.core.data.rollout import (
    ATTEMPT_MOVES,
    ROLLOUT_MOVES,
    AttemptStatus,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from leyden.core.data.worker import WorkerStatus
from leyden.core.errors import CallRefused, IllegalMove

OPEN_ATTEMPT: frozenset[AttemptStatus] = frozenset({"preparing", "running"})
"""An attempt in these states keeps its worker busy."""
_MODES: tuple[RolloutMode, ...] = get_args(RolloutMode)


def check_config(config: RolloutConfig) -> None:
    """Raise CallRefused, a ValueError, for an invalid configuration."""
    if config.max_attempts < 1:
        raise CallRefused(
            f"max_attempts is {config.max_attempts}; it must be at least 1, because the first attempt counts"
        )
    unknown = [status for status in config.retry_condition if status not in ATTEMPT_MOVES]
    if unknown:
        raise CallRefused(
            f"{unknown[0]!r} in retry_condition is not a status of an attempt; use one of {', '.join(ATTEMPT_MOVES)}"
        )
    for name, seconds in (
        ("timeout_seconds", config.timeout_seconds),
        ("unresponsive_seconds", config.unresponsive_seconds),
    ):
        if seconds is not None and not seconds > 0:
            raise CallRefused(f"{name} is {seconds}; it must be above 0, or None for no limit")


def check_mode(mode: RolloutMode | None) -> None:
    """Raise CallRefused, a ValueError, for a mode that does not exist."""
    if mode is not None and mode not in _MODES:
        raise CallRefused(f"{mode!r} is not a mode of a rollout; use one of {', '.join(_MODES)}")


def check_rollout_move(rollout_id: str, old: RolloutStatus, new: RolloutStatus) -> None:
    """Raise IllegalMove unless `ROLLOUT_MOVES` allows the change; ValueError for a status that does not exist."""
    if new not in ROLLOUT_MOVES:
        raise CallRefused(f"{new!r} is not a rollout status; use one of {', '.join(ROLLOUT_MOVES)}")
    if new != old and new not in ROLLOUT_MOVES[old]:
        raise IllegalMove(f"rollout {rollout_id} is {old} and cannot become {new}")


def check_attempt_move(attempt_id: str, old: AttemptStatus, new: AttemptStatus) -> None:
    """Raise IllegalMove unless `ATTEMPT_MOVES` allows the change; ValueError for a status that does not exist."""
    if new not in ATTEMPT_MOVES:
        raise CallRefused(f"{new!r} is not an attempt status; use one of {', '.join(ATTEMPT_MOVES)}")
    if new != old and new not in ATTEMPT_MOVES[old]:
        raise IllegalMove(f"attempt {attempt_id} is {old} and cannot become {new}")


def rollout_after_attempt(
    rollout: RolloutStatus, attempt: AttemptStatus, sequence_id: int, config: RolloutConfig
) -> RolloutStatus:
    """Return the status of a rollout whose latest attempt has just become `attempt`.

    The status stays unchanged where the table does not allow the change. Examples: a cancelled rollout, or one that was
    set to succeeded manually while an attempt still runs.
    """
    wanted: RolloutStatus = "failed"
    if attempt == "preparing" or attempt == "running" or attempt == "succeeded":
        wanted = attempt
    elif attempt in config.retry_condition and sequence_id < config.max_attempts:
        wanted = "requeuing"
    return wanted if wanted in ROLLOUT_MOVES[rollout] else rollout


def attempt_after_span(attempt: AttemptStatus) -> AttemptStatus:
    """Return the status of an attempt after a span arrived: it is running, unless it has ended."""
    return "running" if attempt in ("preparing", "unresponsive") else attempt


def rollout_after_span(rollout: RolloutStatus, attempt: AttemptStatus) -> RolloutStatus:
    """Return the status of a rollout after a span of its latest attempt, whose status was `attempt` before.

    A queued retry is cancelled only when the unresponsive attempt that it would replace revives. A late span of an
    attempt that has ended does not cancel it.
    """
    if rollout == "preparing" and attempt_after_span(attempt) == "running":
        return "running"
    return "running" if rollout == "requeuing" and attempt == "unresponsive" else rollout


def worker_after_end(attempt: AttemptStatus) -> WorkerStatus:
    """Return the status of a worker without an open attempt, after one of its attempts became `attempt`."""
    return "idle" if attempt in ("succeeded", "failed") else "unknown"
