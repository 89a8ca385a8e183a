"""`Algorithm`, which owns a training loop, and `Context`, the verbs it is written in. Knows no particular method."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.staleness import Pace
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredRollouts:
    """What the spans of a store hold, as far as it can be learned from."""

    groups: list[TrajectoryGroup]
    """Trajectories of equal tasks, in the order in which their rollouts began."""
    ids: tuple[str, ...]
    """Of all rollouts there are, those left out included."""
    left_out: Counter[str]
    """Rollouts left out, by the reason why."""
    calls_left_out: Counter[str]
    retokenised: Counter[str]
    """Calls of `groups` whose ids were made from their text, by the reason why."""


class Context(ABC):
    """What an algorithm can ask for: rollouts, evaluations, and that its new weights be served, logged and kept.

    Whatever is about policies is given for all of them at once, by their names: they are published and kept together.
    """

    policies: tuple[str, ...] = (POLICY,)
    """Names of the policies that are trained; of several, `Transition.policy` says which one made a call."""
    steps: int
    """Weight updates to take in all."""
    step: int
    """Weight updates taken so far, in this sitting or an earlier one; also the policy version being served."""
    seed: int

    @property
    def goes_on_after(self) -> int:
        """The step of the checkpoint that `restore` will go on from; 0 where there is none."""
        return 0

    @abstractmethod
    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """The policy of this name as the run begins with it, ready to train."""

    @abstractmethod
    async def restore(self, updaters: "Mapping[str, Updater]") -> None:
        """Go on from the run's last checkpoint, if it has one; those weights are then served."""

    @abstractmethod
    async def collect(self) -> list[TrajectoryGroup]:
        """Run the agent on the next tasks; one group a task.

        With the policy as it is now, unless the algorithm collects at another pace.
        """

    @asynccontextmanager
    async def collecting(self, pace: Pace) -> AsyncGenerator[None]:
        """Let `collect` run ahead of the updates inside the block, as `pace` says; what is in flight ends with it.

        Raises UsageError in a context that knows no other pace than in step.
        """
        if pace.loop != "sync":
            raise UsageError(f"{type(self).__name__} collects in step with the updates, not at loop {pace.loop}")
        yield

    async def stored(self, source: str) -> StoredRollouts:
        """Read the rollouts that another run's folder, or a store, holds; the same ones whenever a run is gone on with.

        Raises UsageError for a source that cannot be read, and where there is nothing to read with.
        """
        raise UsageError(f"{source} cannot be read here: this context knows no stores")

    @abstractmethod
    async def evaluate(self, label: str) -> None:
        """Run the agent on the held-out tasks and note the result as `label` (`before`, `after`, ...)."""

    @abstractmethod
    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread, its time counted under `phase`, while calls go on being answered."""

    @abstractmethod
    async def publish(self, models: "Mapping[str, PolicyModel]") -> Mapping[str, float]:
        """Serve the models' weights as the next version, of all policies: one that was not updated goes along.

        Returns the largest difference between served and trained log-probabilities on each one's fixed check.
        Raises EngineError when it is too large: an engine serves something else than was trained.
        """

    @abstractmethod
    def log(self, metrics: Mapping[str, Any]) -> None:
        """Note the numbers of the step just published: `reward`, `rollouts`, `transitions`, `UpdateReport.metrics`.

        Those of one of several policies have its name before them, as `planner/loss`.
        """

    @abstractmethod
    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out of a step, by the reason why."""

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        """Note what became of a batch's rollouts and calls.

        `step` is the one that was just published; where the batch taught nothing, the one that it was collected for.
        """
        del step, accounts

    @abstractmethod
    async def checkpoint(self, updaters: "Mapping[str, Updater]") -> None:
        """End the step: evaluate if it is time, and keep everything needed to go on from here.

        The run may end early with it: `steps` is then `step`.
        """


class Algorithm(ABC):
    """Owns a training loop. Registered in `algorithm.registry`, or named by an import string."""

    name: str
    Config: type[msgspec.Struct]
    """The typed configuration; unknown keys are refused."""

    def __init__(self, config: msgspec.Struct) -> None:
        self.config = config

    @property
    def named_policy(self) -> str | None:
        """The model to train that its configuration names, for a run that names none: a folder or a hub name."""
        return None

    def check_steps(self, steps: int) -> None:
        """Raise UsageError for a number of steps with which a run cannot work; asked before anything runs."""
        del steps

    def check_change(self, key: str) -> None:
        """Raise UsageError, unless a run may be gone on with another value of this key of its configuration.

        Keys with dots reach into options that are mappings. What is learned is what the run began with.
        """
        raise UsageError(f"--set {key} cannot change on --resume: {self.name} goes on as the run began")

    def rehearsed(self) -> "Algorithm":
        """The algorithm whose first step shows whether a run can learn from what its agents do."""
        return self

    @property
    def needs_rollouts(self) -> bool:
        """Whether training runs the agent; what does not needs tasks, agent and reward only to be evaluated."""
        return True

    @property
    def serves_itself(self) -> bool:
        """Whether its loop runs in processes of its own, which serve the policy: see `algorithm.external_loop`."""
        return False

    @property
    def context_length(self) -> int | None:
        """The most tokens of a call, prompt and answer together, that it then serves; None: as many as the model."""
        return None

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the policies that it trains from the same rollouts, each of which begins as the run's one.

        None: it trains the run's own, each from the calls that it made.
        """
        return ()

    @property
    def acting(self) -> tuple[str, ...]:
        """Those of its sides that answer the agent while it learns, in turn where there are several."""
        return self.sides

    def options_of(self, policy: str) -> msgspec.Struct:
        """The options that decide how `policy` is updated."""
        del policy
        return self.config

    def reference(self) -> str:
        """The name by which another process finds this algorithm: its own, or an import string."""
        kind = type(self)
        own = kind.__module__.startswith("leyden.core.algorithm.")
        return self.name if own else f"{kind.__module__}:{kind.__qualname__}"

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values."""
        return msgspec.to_builtins(self.config)

    @abstractmethod
    async def run(self, context: Context) -> None:
        """Train until `context.step` reaches `context.steps`."""
