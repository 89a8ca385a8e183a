"""`Algorithm`, which owns a training loop, and `Context`, the operations that the loop calls."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.staleness import LoopKind
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
    """The rollouts that were read from a store and can be learned from."""

    groups: list[TrajectoryGroup]
    """Trajectories grouped by equal tasks, in the order in which their rollouts began."""
    ids: tuple[str, ...]
    """Ids of all rollouts in the store, including those left out."""
    left_out: Counter[str]
    """Number of rollouts left out, by the reason why."""
    calls_left_out: Counter[str]
    retokenised: Counter[str]
    """Number of calls of `groups` whose token ids were made from their text, by the reason why."""


class Context(ABC):
    """What an algorithm can call: collect and evaluate rollouts, and publish, log and checkpoint its new weights.

    Arguments that concern policies hold all policies by name, because all are published and checkpointed together.
    """

    policies: tuple[str, ...] = (POLICY,)
    """Names of the policies that are trained. With several, `Transition.policy` names the one that made a call."""
    steps: int
    """Planned number of weight updates."""
    step: int
    """Number of weight updates taken so far, in this session and earlier ones; also the policy version being served."""
    seed: int

    @property
    def goes_on_after(self) -> int:
        """The step of the checkpoint that `restore` will continue from; 0 without a checkpoint."""
        return 0

    @abstractmethod
    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Return the policy of this name with the weights that the run begins with, ready to train."""

    @abstractmethod
    async def restore(self, updaters: "Mapping[str, Updater]") -> None:
        """Restore the run's last checkpoint, if there is one, and serve its weights."""

    @abstractmethod
    async def collect(self) -> list[TrajectoryGroup]:
        """Run the agent on the next tasks, and return one group for each task.

        The agent uses the current policy, unless the algorithm set another pace with `collecting`.
        """

    @asynccontextmanager
    async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
        """Let `collect` run ahead of the updates inside the block, as far as `pace` allows.

        Collecting that is under way when the block ends is stopped. Raises UsageError if the context supports only loop
        `sync` and `pace` is another.
        """
        if pace.loop != "sync":
            raise UsageError(f"{type(self).__name__} collects in step with the updates, not at loop {pace.loop}")
        yield

    async def stored(self, source: str) -> StoredRollouts:
        """Return the rollouts in another run's folder or in a store; a resumed run gets the same rollouts again.

        Raises UsageError if `source` cannot be read, or if this context cannot read stores.
        """
        raise UsageError(f"{source} cannot be read here: this context cannot read stores")

    @abstractmethod
    async def evaluate(self, label: str) -> None:
        """Run the agent on the held-out tasks, and record the result as `label` (`before`, `after`, ...)."""

    @abstractmethod
    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of `function`, called in a thread; its time counts under `phase`.

        The event loop keeps running, so calls of agents are answered during that time.
        """

    @abstractmethod
    async def publish(self, models: "Mapping[str, PolicyModel]") -> Mapping[str, float]:
        """Serve the models' weights as the next version of all policies, including those that were not updated.

        Returns for each policy the largest difference between served and trained log-probabilities on a fixed prompt.
        Raises EngineError if a difference is too large, which means that the engine serves other weights than were
        trained.
        """

    @abstractmethod
    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of the step just published: `reward`, `rollouts`, `transitions`, `UpdateReport.metrics`.

        With several policies, each policy's metrics have its name as prefix, as in `planner/loss`.
        """

    @abstractmethod
    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Add to the counts of groups left out of a step, by the reason why."""

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        """Record what became of a batch's rollouts and calls.

        `step` is the step that was just published. For a batch without anything to learn, it is the step that the batch
        was collected for.
        """
        del step, accounts

    @abstractmethod
    async def checkpoint(self, updaters: "Mapping[str, Updater]") -> None:
        """End the step: evaluate if an evaluation is due, and save everything needed to resume from here.

        If the run is to end early, this sets `steps` to `step`.
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
        """The folder or hub name of the model to train in the configuration, used if the run names no model."""
        return None

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if the algorithm cannot work with this number of steps; called before anything runs."""
        del steps

    def check_change(self, key: str) -> None:
        """Raise UsageError unless a resumed run may change the value of this configuration key.

        Keys with dots reach into options that are mappings. The default refuses every key: a resumed run learns as it
        began.
        """
        raise UsageError(
            f"--set {key} cannot change on --resume: a resumed run keeps the {self.name} configuration that it began "
            "with"
        )

    def rehearsed(self) -> "Algorithm":
        """Return the algorithm whose first step shows whether a run can learn from what its agents do."""
        return self

    @property
    def needs_rollouts(self) -> bool:
        """Whether training runs the agent. If not, tasks, agent and reward are needed only for evaluation."""
        return True

    @property
    def serves_itself(self) -> bool:
        """Whether the loop runs in separate processes that also serve the policy: see `algorithm.external_loop`."""
        return False

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the policies that are trained from the same rollouts, each starting from the run's policy.

        Empty: the algorithm trains the run's own policies, each from the calls that it made.
        """
        return ()

    @property
    def acting(self) -> tuple[str, ...]:
        """Those of `sides` that answer the agent during training; several take turns."""
        return self.sides

    def options_of(self, policy: str) -> msgspec.Struct:
        """Return the options that decide how `policy` is updated."""
        del policy
        return self.config

    def reference(self) -> str:
        """Return the name by which another process can load this algorithm: its own name, or an import string."""
        kind = type(self)
        own = kind.__module__.startswith("leyden.core.algorithm.")
        return self.name if own else f"{kind.__module__}:{kind.__qualname__}"

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values."""
        return msgspec.to_builtins(self.config)

    @abstractmethod
    async def run(self, context: Context) -> None:
        """Train until `context.step` reaches `context.steps`."""
