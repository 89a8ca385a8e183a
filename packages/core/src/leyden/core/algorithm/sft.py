"""SFT: imitate what was written, by whoever it was; of the policy's own rollouts, what turned out well.

On the run's own rollouts this is rejection sampling: RAFT (arXiv 2304.06767) with `keep` best, filtered behaviour
cloning with `above`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from leyden.core.algorithm.base import Context
from leyden.core.algorithm.lessons import LessonLoop, LessonOptions, Lessons, Unit
from leyden.core.data.order import drawn
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import UsageError
from leyden.core.policy.entries import WeightedTransition

if TYPE_CHECKING:
    from leyden.core.policy.update import Updater

FAILED = "failed"
NO_CALL = "no call to imitate"
NO_REWARD = "no reward"
NOT_BEST = "not the best of its group"
EVERY = 10


class SFTConfig(LessonOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is imitated, on top of where it comes from and how the weights change. Units are rollouts."""

    only_from_spans: ClassVar[tuple[str, ...]] = (*LessonOptions.only_from_spans, "held_out")

    loss: SchemeSettings = "sft"
    """A loss that reads neither advantages nor ratios."""
    keep: Literal["all", "best"] = "all"
    """Of a task's rollouts: all, or the one with the highest reward (of equals, the first)."""
    above: float | None = None
    """Only rollouts with a reward above this."""
    held_out: float | None = None
    """Share of the tasks in the spans that is set apart, for a loss that says when imitation turns into repetition."""
    held_out_every: int | None = None
    """Steps between measurements of that loss, which also follows the last step. [10]"""

    def __post_init__(self) -> None:
        super().__post_init__()
        loss = self.make_loss()
        if loss.reads_advantages or loss.reads_ratios:
            raise UsageError(f"sft imitates what was written, and loss {self.loss!r} compares it with something else")
        if self.spans is None and self.keep == "all" and self.above is None:
            raise UsageError("sft needs spans to imitate; to imitate the run's own rollouts, keep=best or above=REWARD")
        if self.held_out is not None and not self.held_out < 1:
            raise UsageError(f"held_out is a share of the tasks, below 1, got {self.held_out}")
        if self.held_out_every is not None and (self.held_out is None or self.held_out_every < 1):
            raise UsageError(f"held_out_every counts steps and needs held_out, got {self.held_out_every}")


class SFT(LessonLoop[SFTConfig]):
    """Maximum likelihood on the responses of whole rollouts."""

    name = "sft"
    Config = SFTConfig
    unit = "rollouts_imitated"

    def __init__(self, config: SFTConfig) -> None:
        super().__init__(config)
        self._apart: list[WeightedTransition] = []

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

    def read(self, groups: Sequence[TrajectoryGroup], seed: int) -> Lessons:
        """Set whole tasks apart for the held-out loss, and choose from the others."""
        if self.config.held_out is None:
            return self.lessons(groups)
        count = max(1, round(self.config.held_out * len(groups)))
        apart = set(drawn(len(groups), 0, min(count, len(groups)), seed) if groups else ())
        held_out = self.lessons([group for place, group in enumerate(groups) if place in apart])
        self._apart = [WeightedTransition(transition=call, advantage=0.0) for unit in held_out.units for call in unit]
        rest = self.lessons([group for place, group in enumerate(groups) if place not in apart])
        if rest.units and not self._apart:
            raise UsageError(f"held_out={self.config.held_out} leaves nothing to measure in {len(apart)} tasks")
        return rest

    async def after_update(self, context: Context, updaters: "Mapping[str, Updater]") -> dict[str, float]:
        """The held-out loss, when it is due."""
        due = context.step % (self.config.held_out_every or EVERY) == 0 or context.step == context.steps
        if not self._apart or not due:
            return {}
        (updater,) = updaters.values()  # spans are learned from by one policy
        return {"held_out_loss": await context.compute("held-out loss", updater.mean_loss, self._apart)}

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
