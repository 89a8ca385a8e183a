"""Recomputable calls: leaves out calls that the trainer cannot recompute, before anything is learned.

A grammar, penalties and biases change the distribution that a response is sampled from. The trainer recomputes the
change from the call's record. Where that fails, the call has no importance ratio. It is then counted and not trained,
and the other calls of the batch are trained. One cause is a record of another version of llguidance or another engine.
The same holds for prompts with images that the policy cannot read.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leyden.core.algorithm.policy_partition import owner
from leyden.core.data.reasons import IMAGES_NOT_READ, NOT_RECOMPUTED
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition

if TYPE_CHECKING:
    from leyden.core.policy.update.updater import Updater

log = logging.getLogger(__name__)


def must_be_checked(groups: Sequence[TrajectoryGroup]) -> bool:
    """Whether the sampling of any call must be recomputed, or any call has images."""
    return any(_is_checked(call) for group in groups for t in group.trajectories for call in t.transitions)


def recomputable(groups: Sequence[TrajectoryGroup], updaters: "Mapping[str, Updater]") -> list[TrajectoryGroup]:
    """Return `groups` without the calls that cannot be recomputed; these are listed as `untrained`.

    This takes time where calls have grammars, so a thread calls it.
    """
    reasons: list[str] = []
    found = [
        replace(group, trajectories=tuple(_recomputable(t, updaters, reasons) for t in group.trajectories))
        for group in groups
    ]
    if reasons:
        log.warning(
            "%d calls are not trained, because they cannot be recomputed; the first: %s",
            len(reasons),
            reasons[0],
        )
    return found


def _is_checked(call: Transition) -> bool:
    return call.sampling is not None or bool(call.images)


def _recomputable(trajectory: Trajectory, updaters: "Mapping[str, Updater]", reasons: list[str]) -> Trajectory:
    unfit: dict[str, str] = {}
    for call in trajectory.transitions:
        if not _is_checked(call):
            continue
        model = updaters[owner(call, updaters)].model
        for name, why_not in (
            (IMAGES_NOT_READ, model.images.why_not),
            (NOT_RECOMPUTED, model.adjusted_responses.why_not),
        ):
            if call.span_id not in unfit and (reason := why_not(call)):
                reasons.append(reason)
                unfit[call.span_id] = name
    if not unfit:
        return trajectory
    kept = tuple(call for call in trajectory.transitions if call.span_id not in unfit)
    return replace(trajectory, transitions=kept, untrained={**trajectory.untrained, **unfit})
