"""Unfinished rollouts of a stopped session: marked failed when the next session begins, and queued again on request.

Such a rollout stays out of the queue until its batch is collected again. Otherwise a worker could claim it early and
run it with weights of another step, or with those served before the checkpoint is loaded.
"""

from collections.abc import Sequence

import msgspec

from leyden.core.data.failure import ERROR, Failure
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, Rollout, RolloutConfig
from leyden.core.errors import LeydenError, RewardError, TaskError, UnknownAgent
from leyden.core.store.base import LightningStore
from leyden.core.store.state_and_retry_rules import OPEN_ATTEMPT
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation

FATAL: dict[str, type[LeydenError]] = {"reward": RewardError, "input": TaskError}
"""Kinds of attempt errors that the user must fix. They stop the run; the resumed run repeats the rollout."""
ABANDONED = "abandoned"
"""Metadata key of a rollout that counts as failed only until it is requested again."""
STOPPED = Failure(kind="worker", type="RunStopped", message="the run was stopped while this attempt ran")


def fatal_error(rollout: Rollout) -> LeydenError | None:
    """Return the error of the rollout's attempt if it must stop the run, else None."""
    if not isinstance(rollout, AttemptedRollout):
        return None
    error: dict[str, str] = rollout.attempt.metadata.get(ERROR) or {}
    if error.get("type") == UnknownAgent.__name__:  # for example an agent that waits for a human and cannot be run
        return UnknownAgent(error.get("message", "unknown"))
    kind = FATAL.get(error.get("kind", ""))
    return None if kind is None else kind(error.get("message", "unknown"))


def is_tried_again(rollout: Rollout) -> bool:
    """Whether a failed rollout runs again when its run is continued."""
    return rollout.status == "failed" and bool(rollout.metadata.get(ABANDONED) or fatal_error(rollout))


async def set_aside(location: StoreLocation, last_alive: float | None = None) -> None:
    """Take the unfinished rollouts of a run out of its queue. No other process may train the run.

    Processes of other runs time out what they find in a shared store, even if no process of its own run is left. With
    `last_alive`, the Unix time at which the run's last process still worked, attempts that timed out later count as
    stopped.

    Each rollout changes in one transaction, together with its maximum number of attempts: a stop is not a failure and
    uses up no attempt. After a kill at any moment, this function can be called again.
    """
    if not location.exists:
        return
    # The clock stands still: the store must not time out attempts for the time in which no process ran.
    store = await location.open(clock=lambda: 0.0)
    try:
        found = (await store.query_rollouts()).complete()
        left = [one for one in found if _is_unfinished(one) or _outlived(one, last_alive)]
        for rollout in left:
            uses_up = _was_running(rollout) or _outlived(rollout, last_alive)
            await store.update_rollout(
                rollout.rollout_id,
                status="failed",
                metadata={**rollout.metadata, ABANDONED: True},
                config=_with_another_attempt(rollout.config) if uses_up else rollout.config,
            )
    finally:
        await store.close()
    if left:
        await _close_attempts(location, [rollout for rollout in left if isinstance(rollout, AttemptedRollout)])


async def requeue(store: LightningStore, rollouts: Sequence[Rollout]) -> None:
    """Queue those of `rollouts` that `set_aside` took out."""
    for rollout in rollouts:
        if rollout.metadata.get(ABANDONED):
            metadata = {key: value for key, value in rollout.metadata.items() if key != ABANDONED}
            await store.update_rollout(rollout.rollout_id, status="requeuing", metadata=metadata)


async def _close_attempts(location: StoreLocation, rollouts: Sequence[AttemptedRollout]) -> None:
    """Mark the open attempts as failed. Their rollouts were set aside, so their status does not change."""
    store = await location.open()
    try:
        for rollout in rollouts:
            attempt = rollout.attempt
            if attempt.status in OPEN_ATTEMPT:
                metadata = {**attempt.metadata, ERROR: STOPPED.metadata()}
                await store.update_attempt(rollout.rollout_id, attempt.attempt_id, status="failed", metadata=metadata)
    finally:
        await store.close()


def _is_unfinished(rollout: Rollout) -> bool:
    if rollout.metadata.get(ABANDONED):
        return False
    return rollout.status not in FINISHED_ROLLOUT or (rollout.status == "failed" and fatal_error(rollout) is not None)


def _was_running(rollout: Rollout) -> bool:
    """Whether the stop, or an error that the user had to fix, used up an attempt."""
    if not isinstance(rollout, AttemptedRollout):
        return False
    return rollout.status == "failed" or rollout.attempt.status in OPEN_ATTEMPT


def _outlived(rollout: Rollout, last_alive: float | None) -> bool:
    """Whether the latest attempt has timed out at a moment at which the run's last process did not work any more.

    An attempt with a recorded error did not: a process of the run has ended it, such as one whose worker died.
    """
    if last_alive is None or rollout.metadata.get(ABANDONED) or not isinstance(rollout, AttemptedRollout):
        return False
    attempt, limits = rollout.attempt, rollout.config
    if ERROR in attempt.metadata:
        return False
    if attempt.status == "timeout" and limits.timeout_seconds is not None:
        return attempt.start_time + limits.timeout_seconds > last_alive
    if attempt.status == "unresponsive" and limits.unresponsive_seconds is not None:
        return (attempt.last_heartbeat_time or attempt.start_time) + limits.unresponsive_seconds > last_alive
    return False


def _with_another_attempt(config: RolloutConfig) -> RolloutConfig:
    return msgspec.structs.replace(config, max_attempts=config.max_attempts + 1)
