"""`Algorithm`, which owns a training loop, and `Context`, the operations that the loop calls."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import NamedResources, PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.data.route import POLICY
from leyden.core.data.span import Span
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.token_record import TokenRecord
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")

NO_POLICY: Mapping[str, Any] = MappingProxyType({})
"""Updaters or models of an algorithm that trains no policy."""


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
    """What an algorithm can call: collect and evaluate rollouts; publish, log and checkpoint new weights and resources.

    Arguments that concern policies hold all policies by name, because all are published and checkpointed together. An
    algorithm without weights (`Algorithm.needs_policy`) leaves them out.
    """

    policies: tuple[str, ...] = (POLICY,)
    """Names of the policies that are trained. With several, `Transition.policy` names the one that made a call."""
    steps: int
    """Planned number of steps. Each publishes a version."""
    step: int
    """Number of steps taken so far, in this session and earlier ones; also the version being served."""
    seed: int
    tasks: Sequence[Task] = ()
    """The training tasks."""
    held_out: Mapping[str, Sequence[Task]] = MappingProxyType({})
    """The tasks of each held-out set."""
    resources: Mapping[str, Resource] = MappingProxyType({})
    """The published resources: rollouts run with them unless they name another version."""
    state: Any = None
    """What the algorithm gave `save_state` last, in this session or an earlier one; None if it never did."""

    @property
    def goes_on_after(self) -> int:
        """The step of the checkpoint that `restore` will continue from; 0 without a checkpoint."""
        return 0

    @abstractmethod
    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Return the policy of this name with the weights that the run begins with, ready to train."""

    @abstractmethod
    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Restore the run's last checkpoint, if there is one, and serve its weights and resources."""

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

    def next_rows(self) -> list[int]:
        """Return the rows of the training tasks whose turn it is in the next step, `--tasks-per-step` of them.

        A step that is repeated after a crash has the same rows.
        """
        raise UsageError(f"{type(self).__name__} has no order of tasks")

    async def add_resources(self, changes: NamedResources) -> str:
        """Store a version of the resources, and return its id for `RolloutRequest.resources_id`.

        The version is `resources` with `changes`. Nothing else runs with it until it is published. Equal resources have
        the same id, in every session. Raises UsageError for a prompt's name that cannot be a file name, or if this
        context has no store.
        """
        del changes
        raise UsageError(f"{type(self).__name__} cannot store resources")

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Run the agent as requested, all at once, and return the results in the order of the requests.

        A rollout that an earlier session finished in the same step is read from the store, not run again. Failed
        rollouts are results, too. Raises UsageError for errors that the user must fix, or if this context runs no
        agent.
        """
        del requests
        raise UsageError(f"{type(self).__name__} runs no single tasks")

    def language_model(self, options: ModelOptions) -> LanguageModel:
        """Return a model that the algorithm can call; close it after use.

        Raises UsageError if it cannot be called, or if this context has no models.
        """
        raise UsageError(f"{type(self).__name__} has no language model {options.model or options.endpoint}")

    def call_cost(self, call: Span) -> float | None:
        """Return what a model call of the agent cost, in US dollars; None if it is unknown."""
        del call
        return None

    def show(self, line: str) -> None:
        """Show a line to the person who watches the run."""
        del line

    def save_state(self, state: Any) -> None:
        """Keep `state`, a value that JSON can hold, on disk at once; a resumed run finds it in `state`.

        Call it after work that a crash must not repeat, such as calls of a paid model. Every checkpoint holds the state
        saved last. A rollback returns to that of its checkpoint.
        """
        self.state = state

    @abstractmethod
    async def evaluate(self, label: str) -> None:
        """Run the agent on the held-out tasks, and record the result as `label` (`before`, `after`, ...)."""

    def divide_groups(self, resources_ids: Sequence[str]) -> None:
        """Let the rollouts of each task that `collect` returns run with these versions of the resources in turn.

        They stay one group. Without any ids, they run with the published version. Raises UsageError if this context
        collects with one version only.
        """
        if resources_ids:
            raise UsageError(f"{type(self).__name__} collects with the published resources only")

    async def evaluate_combinations(self, models: "Mapping[str, PolicyModel]") -> None:
        """Evaluate the weights that the run began with and those of `models`, with the first and the published prompts.

        Call it once, after `evaluate("after")`, with the served models of all policies; they are served again
        afterwards. Raises UsageError if this context evaluates nothing.
        """
        del models
        raise UsageError(f"{type(self).__name__} evaluates no combinations of weights and prompts")

    @abstractmethod
    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of `function`, called in a thread; its time counts under `phase`.

        The event loop keeps running, so calls of agents are answered during that time.
        """

    @abstractmethod
    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> Mapping[str, float]:
        """Serve the next version: the models' weights, of all policies, including those that were not updated.

        With `resources`, rollouts that are enqueued from now on run with these in place of the published ones of the
        same names, unless they name another version. Returns for each policy the largest difference between served and
        trained log-probabilities on a fixed prompt. Raises EngineError if a difference is too large, which means that
        the engine serves other weights than were trained.
        """

    @abstractmethod
    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of the step just published: `reward`, `rollouts`, `transitions`, `UpdateReport.metrics`.

        With several policies, each policy's metrics have its name as prefix, as in `planner/loss`. `notes` is a mapping
        of texts by name, which the store keeps with the step.
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

    def record_tokens(self, record: "TokenRecord") -> None:
        """Keep what the step just published computed for each trained token."""
        del record

    @abstractmethod
    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """End the step: evaluate if an evaluation is due, and save everything needed to resume from here.

        If the run is to end early, this sets `steps` to `step`.
        """


class RunDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `Trainer` where its caller gives none."""

    steps: int = 25
    timeout_seconds: float = 120.0
    """Time limit of one attempt."""


class Algorithm(ABC):
    """Owns a training loop. Registered in `algorithm.registry`, or named by an import string."""

    name: str
    Config: type[msgspec.Struct]
    """The typed configuration; unknown keys are refused."""
    needs_policy: ClassVar[bool] = True
    """Whether it trains the weights of a policy. If not, the model at an endpoint answers the agent."""
    takes_batches: ClassVar[bool] = True
    """Whether a step runs the next `--tasks-per-step` tasks. If not, the algorithm chooses its tasks itself."""
    run_defaults: RunDefaults = RunDefaults()
    keys: Mapping[str, str] = MappingProxyType({})
    """Keys that were given in Python, by the environment variables that the configuration names. No file holds them."""
    trains_prompts: ClassVar[bool] = False
    """Whether it changes prompts, so that rewards may begin to differ although they are all equal at first."""
    kept_prompts: Mapping[str, PromptTemplate] = MappingProxyType({})
    """Prompts of the kept version by name, once `Trainer.fit` has returned; empty if the run trained none."""

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

    @property
    def called_policies(self) -> tuple[str, ...]:
        """Names of the policies, frozen ones included, that the algorithm itself calls; no route need lead to them."""
        return ()

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

    def recorded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given settings as `config.yaml` records them: a resumed run must not depend on other files."""
        return dict(given)

    def without_held_out(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given settings for a check, which has no held-out tasks."""
        return dict(given)

    @abstractmethod
    async def run(self, context: Context) -> None:
        """Train until `context.step` reaches `context.steps`."""
