"""Discarded versions: finds rollouts drawn by weights that were served but not kept when the run stopped.

A resumed loop gives other weights the same version number. Without this module, such a rollout would be attributed to
the new weights.
"""

from collections.abc import Iterable

from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, EnqueueRollout
from leyden.core.store.base import LightningStore
from leyden.core.trainer.rollouts.interrupted import ABANDONED
from leyden.core.trajectory.calls import is_recorded_call, newest_version

LOST = "lost_weights"
"""Metadata key that marks such a rollout, so that it stays marked when its version number is reached again."""


async def are_lost(store: LightningStore, requests: Iterable[EnqueueRollout], kept: int) -> bool:
    """Return whether some of these rollouts had finished with a version later than `kept`, the resumed version.

    Marks these rollouts in the store. Call this before the session runs the requests itself, because its own versions
    are not lost.
    """
    found = False
    for request in requests:
        rollout = await store.get_rollout_by_id(request.rollout_id or "")
        if not isinstance(rollout, AttemptedRollout) or not _has_ended(rollout):
            continue
        if rollout.metadata.get(LOST):
            found = True
        elif await _newest(store, rollout) > kept:
            await store.update_rollout(rollout.rollout_id, metadata={**rollout.metadata, LOST: True})
            found = True
    return found


def _has_ended(rollout: AttemptedRollout) -> bool:
    """Whether the rollout has finished and will not run again on request."""
    return rollout.status in FINISHED_ROLLOUT and not rollout.metadata.get(ABANDONED)


async def _newest(store: LightningStore, rollout: AttemptedRollout) -> int:
    """Return the newest version that drew a call of the latest attempt; -1 without such a call."""
    spans = (await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)).items
    return max((newest_version(span) for span in spans if is_recorded_call(span)), default=-1)
