"""SFT: imitate what was written, by whoever it was; of the policy's own rollouts, what turned out well.

On the run's own rollouts this is rejection sampling: RAFT (arXiv 2304.06767) with `keep` best, filtered behaviour
cloning with `above`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from leyden.core.algorithm.lessons import LessonLoop, LessonOptions, Lessons, Unit
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import UsageError

FAILED = "failed"
NO_CALL = "no call to imitate"
NO_REWARD = "no reward"
NOT_BEST = "not the best of its group"


class SFTConfig(LessonOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is imitated, on top of where it comes from and how the weights change. Units are rollouts."""

    loss: SchemeSettings = "sft"
    """A loss that reads neither advantages nor ratios."""
    keep: Literal["all", "best"] = "all"
    """Of a task's rollouts: all, or the one with the highest reward (of equals, the first)."""
    above: float | None = None
    """Only rollouts with a reward above this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        loss = self.make_loss()
        if loss.reads_advantages or loss.reads_ratios:
            raise UsageError(f"sft imitates what was written, and loss {self.loss!r} compares it with something else")
        if self.spans is None and self.keep == "all" and self.above is None:
            raise UsageError("sft needs spans to imitate; to imitate the run's own rollouts, keep=best or above=REWARD")


class SFT(LessonLoop[SFTConfig]):
    """Maximum likelihood on the responses of whole rollouts."""

    name = "sft"
    Config = SFTConfig
    unit = "rollouts_imitated"

    def lessons(self, groups: Sequence[TrajectoryGroup]) -> Lessons:
        """The rollouts that pass the filter, each a unit."""
        units: list[Unit] = []
        dropped, left_out = Counter[str](), Counter[str]()
        for group in groups:
            kept, reasons = self._kept(group)
            units += [trajectory.transitions for trajectory in kept]
            left_out += reasons
            if not kept:
                dropped["nothing to imitate"] += 1
        return Lessons(units, dropped, left_out)

    def _kept(self, group: TrajectoryGroup) -> tuple[list[Trajectory], Counter[str]]:
        """The trajectories of a group to imitate, and how many are left out, by reason."""
        kept: list[Trajectory] = []
        left_out: Counter[str] = Counter()
        for trajectory in group.trajectories:
            reason = self._objection(trajectory)
            if reason is None:
                kept.append(trajectory)
            else:
                left_out[reason] += 1
        if self.config.keep == "best" and kept:
            best = max(kept, key=lambda trajectory: trajectory.reward or 0.0)
            left_out += Counter({NOT_BEST: len(kept) - 1})
            kept = [best]
        return kept, left_out

    def _objection(self, trajectory: Trajectory) -> str | None:
        """Why a trajectory is not imitated, whatever its group; None: nothing speaks against it."""
        config = self.config
        if not trajectory.succeeded:
            return FAILED
        if not trajectory.transitions:
            return NO_CALL
        if trajectory.reward is None:
            return NO_REWARD if config.keep == "best" or config.above is not None else None
        if config.above is not None and not trajectory.reward > config.above:
            return f"reward not above {config.above:g}"
        return None
