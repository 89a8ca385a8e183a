"""Stages: one algorithm after the other in one run, on the same policies. Knows nothing of what each of them learns.

Such as imitation of a teacher's traces before learning from rewards, or a second credit scheme once the first has done
its work. Every stage has an optimizer of its own, which begins when the stage does.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.learner import Learner
from leyden.core.algorithm.registry import make_learner
from leyden.core.algorithm.staleness import Pace
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

_SHARED = {"lora": None, "precision": "float32"}
"""Options that say what the policy is, with their defaults."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One algorithm, and for how long."""

    algorithm: str
    """Name of a registered algorithm that learns from batches, or an import string."""
    steps: int | None = None
    """How many it takes; only the last may leave it out, and then takes the rest of the run's."""
    config: dict[str, Any] = {}
    """Its configuration, as it would have it alone."""


class StagesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learned by when."""

    stages: list[Stage]
    """In their order, two or more."""
    learning_rate: float | None = None
    """Of every stage whose own configuration has none."""

    def __post_init__(self) -> None:
        if len(self.stages) < 2:
            raise UsageError(f"stages are two or more, not {len(self.stages)}; one algorithm alone needs none")
        for number, stage in enumerate(self.stages, 1):
            if stage.steps is None and number < len(self.stages):
                raise UsageError(f"stage {number} ({stage.algorithm}) needs steps: only the last takes what is left")
            if stage.steps is not None and stage.steps < 1:
                raise UsageError(f"stage {number} ({stage.algorithm}) needs at least 1 step, not {stage.steps}")
        learners = self.learners()
        for option, default in _SHARED.items():
            found = [getattr(learner.config, option, default) for learner in learners]
            if any(one != other for one, other in pairwise(found)):
                raise UsageError(f"all stages train the same policy, so {option} must be the same in each")
        if any(one.pace() != other.pace() for one, other in pairwise(learners)):
            raise UsageError("stages cannot change how a run collects: loop and max_staleness must be the same in each")

    def learners(self) -> list[Learner[Any, Any]]:
        """The algorithm of every stage, fresh; raises UsageError for one that cannot be a stage."""
        return [
            make_learner(stage.algorithm, stage.config, learning_rate=self.learning_rate, place=f"stage {number}")
            for number, stage in enumerate(self.stages, 1)
        ]

    # --- What a run asks of an algorithm's options before it begins: the most that any stage takes

    @property
    def lora(self) -> Any:
        """Low-rank adapters, which all stages train or none."""
        return self._options("lora", None)[0]

    @property
    def token_budget(self) -> int | None:
        """Padded tokens of the largest pass; None where a stage decides by its rollouts."""
        budgets = self._options("token_budget", None)
        return None if None in budgets else max(budgets)

    @property
    def compares_with_reference(self) -> bool:
        """Whether a copy of the initial policy is kept."""
        return any(self._options("compares_with_reference", False))

    @property
    def critic(self) -> Any:
        """The first critic that there is."""
        return next((critic for critic in self._options("critic", None) if critic is not None), None)

    def _options(self, name: str, default: Any) -> list[Any]:
        return [getattr(learner.config, name, default) for learner in self.learners()]


class Stages(Algorithm):
    """Lets every stage's algorithm take its steps on the models that the one before left."""

    name = "stages"
    Config = StagesConfig

    def __init__(self, config: StagesConfig) -> None:
        super().__init__(config)
        self._stages, self._learners = config.stages, config.learners()

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, every option of every stage included."""
        stages = [
            {"algorithm": stage.algorithm, "steps": stage.steps, "config": learner.settings()}
            for stage, learner in zip(self._stages, self._learners, strict=True)
        ]
        return {"stages": stages}

    @property
    def needs_rollouts(self) -> bool:
        """Whether any stage runs the agent."""
        return any(learner.needs_rollouts for learner in self._learners)

    def rehearsed(self) -> Algorithm:
        """The first stage that runs the agent."""
        return next((learner for learner in self._learners if learner.needs_rollouts), self)

    def pace(self) -> Pace:
        """How far collecting may run ahead, in all stages."""
        return self._learners[0].pace()

    async def run(self, context: Context) -> None:
        """Take the planned steps, from wherever the last sitting left off."""
        await self._plan(context)
        models = {name: context.load_policy(name) for name in context.policies}
        # All at once, before any of them learns: what a stage keeps of the policy is that of the run's beginning, in
        # whichever stage a sitting begins.
        updaters = [self._updaters(models, learner, context) for learner in self._learners]
        now = _stage_of(context.goes_on_after, self._learners)
        await context.restore(updaters[now])
        if context.step == 0:
            await context.evaluate("before")
        async with context.collecting(self.pace()):
            for learner, own in zip(self._learners[now:], updaters[now:], strict=True):
                await learner.take_steps(context, own)
        await context.evaluate("after")

    def check_steps(self, steps: int) -> None:
        """Raise UsageError where the stages do not come to these steps."""
        taken = 0
        for number, (stage, learner) in enumerate(zip(self._stages, self._learners, strict=True), 1):
            left = steps - taken
            own = left if stage.steps is None else stage.steps
            if own > left or not left:
                raise UsageError(
                    f"the run's {steps} steps end before stage {number} ({stage.algorithm}) does; give more, or the "
                    f"stages fewer"
                )
            learner.check_steps(own)
            taken += own
        if taken < steps:
            raise UsageError(
                f"stages take {taken} of the run's {steps} steps; leave steps out of the last, or give the run {taken}"
            )

    async def _plan(self, context: Context) -> None:
        """Give every stage its steps, of which it may take fewer; raises UsageError where they are not the run's."""
        self.check_steps(context.steps)
        begins = 0
        for stage, learner in zip(self._stages, self._learners, strict=True):
            steps = context.steps - begins if stage.steps is None else stage.steps
            learner.begins = begins
            learner.ends = begins = begins + await learner.prepare(context, steps)
        context.steps = begins

    @staticmethod
    def _updaters(
        models: "dict[str, PolicyModel]", learner: Learner[Any, Any], context: Context
    ) -> "dict[str, Updater]":
        return learner.make_updaters(models, (learner.ends or 0) - learner.begins, context.seed)


def _stage_of(step: int, learners: Sequence[Learner[Any, Any]]) -> int:
    """Which stage took this step; before any, the first. A checkpoint holds what that stage trains with."""
    for number, learner in enumerate(learners):
        if step <= (learner.ends or 0):
            return number
    return len(learners) - 1
