"""SFT: supervised fine-tuning on recorded responses, or on the best of the policy's own rollouts.

On the run's own rollouts this is rejection sampling: RAFT (arXiv 2304.06767) with `keep=best`, and filtered behaviour
cloning with `above`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from leyden.core.algorithm.account import account_of
from leyden.core.algorithm.supervised_loop import SupervisedLoop, SupervisedOptions, SupervisedUnits, Unit
from leyden.core.data.reasons import (
    FAILED,
    NO_CALL_TO_IMITATE,
    NO_REWARD,
    NOT_ABOVE,
    NOT_BEST,
    NOTHING_TO_IMITATE,
    failed_by,
)
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import UsageError


class SFTConfig(SupervisedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rollouts are imitated, in addition to their source and how the weights change. A unit is a rollout."""

    loss: SchemeSettings = "sft"
    """A loss that reads neither advantages nor ratios."""
    keep: Literal["all", "best"] = "all"
    """Which of a task's rollouts to use: all, or only the one with the highest reward (the first of equals)."""
    above: float | None = None
    """Only rollouts with a reward above this are used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        loss = self.make_loss()
        if loss.reads_advantages or loss.reads_ratios:
            raise UsageError(
                f"sft imitates answers, so its loss can read neither advantages nor ratios, as {self.loss!r} does: "
                "leave loss out"
            )
        if self.spans is None and self.keep == "all" and self.above is None:
            raise UsageError(
                "sft needs spans to imitate; to imitate the run's own rollouts, set keep=best or above=REWARD"
            )


class SFT(SupervisedLoop[SFTConfig]):
    """Maximum likelihood on the responses of whole rollouts."""

    name = "sft"
    Config = SFTConfig
    unit = "rollouts_imitated"

    def select_units(self, groups: Sequence[TrajectoryGroup]) -> SupervisedUnits:
        """Return the rollouts that pass the filter, each as a unit."""
        units: list[Unit] = []
        dropped, left_out = Counter[str](), Counter[str]()
        objections: dict[str, str] = {}
        for group in groups:
            kept, reasons = self._kept(group)
            units += [trajectory.transitions for trajectory in kept]
            objections |= reasons
            left_out.update(reasons.values())
            if not kept:
                dropped[NOTHING_TO_IMITATE] += 1
        account = account_of(groups, {call.span_id for unit in units for call in unit}, objections=objections)
        return SupervisedUnits(units, dropped, left_out, account)

    def _kept(self, group: TrajectoryGroup) -> tuple[list[Trajectory], dict[str, str]]:
        """Return the trajectories of a group to imitate, and for the others the reason by rollout id."""
        kept: list[Trajectory] = []
        left_out: dict[str, str] = {}
        for trajectory in group.trajectories:
            reason = self._objection(trajectory)
            if reason is None:
                kept.append(trajectory)
            else:
                left_out[trajectory.rollout_id] = reason
        if self.config.keep == "best" and kept:
            best = max(kept, key=lambda trajectory: trajectory.reward or 0.0)
            left_out |= {trajectory.rollout_id: NOT_BEST for trajectory in kept if trajectory is not best}
            kept = [best]
        return kept, left_out

    def _objection(self, trajectory: Trajectory) -> str | None:
        """Return why a trajectory is not imitated, without regard to its group; None if it may be imitated."""
        config = self.config
        if not trajectory.succeeded:
            return FAILED["unknown"] if trajectory.failure is None else failed_by(trajectory.failure)
        if not trajectory.transitions:
            return NO_CALL_TO_IMITATE
        if trajectory.reward is None:
            return NO_REWARD if config.keep == "best" or config.above is not None else None
        if config.above is not None and not trajectory.reward > config.above:
            return f"{NOT_ABOVE} {config.above:g}"
        return None
