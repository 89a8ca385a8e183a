"""Stages: several algorithms that train the same policies one after another in one run.

Examples are imitation of a teacher's traces before learning from rewards, or a second credit scheme after the first.
Every stage has an optimizer of its own, which starts with the stage.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.learner import Learner
from leyden.core.algorithm.registry import make_learner
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

_SHARED = {"lora": None, "precision": "float32"}
"""Options that define the policy itself, with their defaults."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One algorithm and its number of steps."""

    algorithm: str
    """Name of a registered algorithm that learns from batches, or an import string."""
    steps: int | None = None
    """Number of steps; only the last stage may omit it, and then takes the remaining steps of the run."""
    config: dict[str, Any] = {}
    """Configuration of the algorithm, the same as if it ran alone."""


class StagesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stages of a run."""

    stages: list[Stage]
    """Two or more stages in their order."""
    learning_rate: float | None = None
    """Learning rate of every stage whose own configuration has none."""

    def __post_init__(self) -> None:
        if len(self.stages) < 2:
            raise UsageError(
                f"stages needs at least two entries, not {len(self.stages)}; to run one algorithm, leave stages out"
            )
        for number, stage in enumerate(self.stages, 1):
            if stage.steps is None and number < len(self.stages):
                raise UsageError(
                    f"stage {number} ({stage.algorithm}) needs steps: only the last stage may omit them, and takes "
                    "the remaining steps"
                )
            if stage.steps is not None and stage.steps < 1:
                raise UsageError(f"stage {number} ({stage.algorithm}) needs at least 1 step, not {stage.steps}")
        learners = self.learners()
        for option, default in _SHARED.items():
            found = [getattr(learner.config, option, default) for learner in learners]
            if any(one != other for one, other in pairwise(found)):
                raise UsageError(f"all stages train the same policy, so {option} must be the same in all stages")
        if any(one.pace() != other.pace() for one, other in pairwise(learners)):
            raise UsageError(
                "loop and max_staleness must be the same in all stages: a run collects rollouts in one way"
            )

    def learners(self) -> list[Learner[Any, Any]]:
        """Return a new learner for every stage; raises UsageError for an algorithm that cannot be a stage."""
        return [
            make_learner(stage.algorithm, stage.config, learning_rate=self.learning_rate, label=f"stage {number}")
            for number, stage in enumerate(self.stages, 1)
        ]

    # --- Options that a run reads before it begins; each is the largest requirement of any stage

    @property
    def lora(self) -> Any:
        """Low-rank adapter options, which are the same in all stages; None: no adapters."""
        return self._options("lora", None)[0]

    @property
    def token_budget(self) -> int | None:
        """Padded tokens of the largest forward pass; None if a stage sizes its passes by its rollouts."""
        budgets = self._options("token_budget", None)
        return None if None in budgets else max(budgets)

    @property
    def compares_with_reference(self) -> bool:
        """Whether any stage needs a copy of the initial policy."""
        return any(self._options("compares_with_reference", False))

    @property
    def critic(self) -> Any:
        """The first critic of any stage; None if no stage has one."""
        return next((critic for critic in self._options("critic", None) if critic is not None), None)

    def _options(self, name: str, default: Any) -> list[Any]:
        return [getattr(learner.config, name, default) for learner in self.learners()]


class Stages(Algorithm):
    """Runs the learner of every stage in turn, on the models that the previous stage trained."""

    name = "stages"
    Config = StagesConfig

    def __init__(self, config: StagesConfig) -> None:
        super().__init__(config)
        self._stages, self._learners = config.stages, config.learners()

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of every stage."""
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
        """Return the learner of the first stage that runs the agent; this algorithm if no stage does."""
        return next((learner for learner in self._learners if learner.needs_rollouts), self)

    def pace(self) -> LoopKind:
        """Return how far collecting may run ahead, which is the same in all stages."""
        return self._learners[0].pace()

    async def run(self, context: Context) -> None:
        """Take the planned steps, continuing from where the last session stopped."""
        await self._plan(context)
        models = {name: context.load_policy(name) for name in context.policies}
        # All updaters are made before any of them learns. Copies of the policy that a stage keeps are then copies of
        # the run's initial policy, whichever stage a session begins in.
        updaters = [self._updaters(models, learner, context) for learner in self._learners]
        current = _stage_of(context.goes_on_after, self._learners)
        await context.restore(updaters[current])
        if context.step == 0:
            await context.evaluate("before")
        async with context.collecting(self.pace()):
            for learner, stage_updaters in zip(self._learners[current:], updaters[current:], strict=True):
                await learner.take_steps(context, stage_updaters)
        await context.evaluate("after")

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if the steps of the stages do not add up to `steps`."""
        taken = 0
        for number, (stage, learner) in enumerate(zip(self._stages, self._learners, strict=True), 1):
            left = steps - taken
            stage_steps = left if stage.steps is None else stage.steps
            if stage_steps > left or not left:
                raise UsageError(
                    f"the run's {steps} steps are too few for stage {number} ({stage.algorithm}); give the run more "
                    "steps, or the stages fewer"
                )
            learner.check_steps(stage_steps)
            taken += stage_steps
        if taken < steps:
            raise UsageError(
                f"stages take {taken} of the run's {steps} steps; omit steps in the last stage, or give the run "
                f"{taken} steps"
            )

    async def _plan(self, context: Context) -> None:
        """Assign steps to every stage, which may take fewer; raises UsageError if they are not the run's steps."""
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
    """Return the index of the stage that took this step; the first for step 0.

    The checkpoint of the step holds the training state of that stage.
    """
    for number, learner in enumerate(learners):
        if step <= (learner.ends or 0):
            return number
    return len(learners) - 1
