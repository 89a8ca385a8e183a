"""What a sitting that was stopped or killed left unfinished: set aside when the next begins, queued when asked for.

Until its batch is collected again such a rollout stays out of the queue: a worker that claims at once would run it
with the weights that are served before the checkpoint is read, or with those of an earlier step.
"""

from collections.abc import Sequence

import msgspec

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, Rollout, RolloutConfig
from leyden.core.errors import LeydenError, RewardError, TaskError, UnknownAgent
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.store.state_rules import OPEN_ATTEMPT

FATAL: dict[str, type[LeydenError]] = {"reward": RewardError, "input": TaskError}
"""Kinds of attempt errors that are the user's to mend: the run stops, and tries again when it is gone on with."""
ABANDONED = "abandoned"
"""Key in a rollout's metadata: it counts as failed only until somebody asks for it."""
STOPPED = Failure(kind="worker", type="RunStopped", message="the run was stopped while this attempt ran")


def fatal_error(rollout: Rollout) -> LeydenError | None:
    """The error of the rollout's attempt that stops a run, if it met one."""
    if not isinstance(rollout, AttemptedRollout):
        return None
    error: dict[str, str] = rollout.attempt.metadata.get("error") or {}
    if error.get("type") == UnknownAgent.__name__:  # an agent that waits for a human, say, and cannot be run
        return UnknownAgent(error.get("message", "unknown"))
    kind = FATAL.get(error.get("kind", ""))
    return None if kind is None else kind(error.get("message", "unknown"))


async def set_aside(store_uri: str) -> None:
    """Take what is unfinished out of the queue of a store that nobody works on.

    Each rollout moves in one transaction, its limit of attempts with it: to be stopped is nobody's failure and uses up
    no attempt. Killed at any moment, this can be done again.
    """
    # Time stands still: the store must not hold it against an attempt how long nobody was there to end it.
    store = await open_store(store_uri, clock=lambda: 0.0)
    try:
        left = [rollout for rollout in await store.query_rollouts() if _is_unfinished(rollout)]
        for rollout in left:
            await store.update_rollout(
                rollout.rollout_id,
                status="failed",
                metadata={**rollout.metadata, ABANDONED: True},
                config=_with_another_attempt(rollout.config) if _was_running(rollout) else rollout.config,
            )
    finally:
        await store.close()
    if left:
        await _close_attempts(store_uri, [rollout for rollout in left if isinstance(rollout, AttemptedRollout)])


async def take_up(store: LightningStore, rollouts: Sequence[Rollout]) -> None:
    """Queue those of `rollouts` that were set aside."""
    for rollout in rollouts:
        if rollout.metadata.get(ABANDONED):
            metadata = {key: value for key, value in rollout.metadata.items() if key != ABANDONED}
            await store.update_rollout(rollout.rollout_id, status="requeuing", metadata=metadata)


async def _close_attempts(store_uri: str, rollouts: Sequence[AttemptedRollout]) -> None:
    """Mark the attempts that will not go on; their rollouts, being set aside, do not follow."""
    store = await open_store(store_uri)
    try:
        for rollout in rollouts:
            attempt = rollout.attempt
            if attempt.status in OPEN_ATTEMPT:
                metadata = {**attempt.metadata, "error": STOPPED.metadata()}
                await store.update_attempt(rollout.rollout_id, attempt.attempt_id, status="failed", metadata=metadata)
    finally:
        await store.close()


def _is_unfinished(rollout: Rollout) -> bool:
    if rollout.metadata.get(ABANDONED):
        return False
    return rollout.status not in FINISHED_ROLLOUT or (rollout.status == "failed" and fatal_error(rollout) is not None)


def _was_running(rollout: Rollout) -> bool:
    """Whether an attempt was used up by the stop, or by what the user had to mend."""
    if not isinstance(rollout, AttemptedRollout):
        return False
    return rollout.status == "failed" or rollout.attempt.status in OPEN_ATTEMPT


def _with_another_attempt(config: RolloutConfig) -> RolloutConfig:
    return msgspec.structs.replace(config, max_attempts=config.max_attempts + 1)
