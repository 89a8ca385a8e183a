"""Rollouts drawn by weights that are no more: of a version that was served, and not kept when the run stopped.

A loop that goes on comes to other weights under the same version: such a rollout would be taken for theirs.
"""

from collections.abc import Iterable

from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, EnqueueRollout
from leyden.core.store.base import LightningStore
from leyden.core.trainer.rollouts.interrupted import ABANDONED
from leyden.core.trajectory.calls import is_recorded_call, newest_version

LOST = "lost_weights"
"""Key in the metadata of such a rollout, so that it stays one when its version is reached again."""


async def are_lost(store: LightningStore, requests: Iterable[EnqueueRollout], kept: int) -> bool:
    """Whether some of these rollouts had finished, drawn by a later version than `kept`, which is gone on from.

    Those are marked. Ask before the sitting itself runs them: its own versions are not lost.
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
    """Whether it is not run any more, not even when it is asked for."""
    return rollout.status in FINISHED_ROLLOUT and not rollout.metadata.get(ABANDONED)


async def _newest(store: LightningStore, rollout: AttemptedRollout) -> int:
    """The newest version that drew a call of the attempt that counts; -1 where there is none."""
    spans = (await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)).items
    return max((newest_version(span) for span in spans if is_recorded_call(span)), default=-1)
