"""`ScriptedPromptContext`: a training context in memory for tests of algorithms that train prompts.

It runs no agent: a function gives each rollout its reward, by the resources that the rollout would run with.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from leyden.core.algorithm.base import NO_POLICY, Context
from leyden.core.algorithm.language_model import Completion, LanguageModel, Message, ModelOptions
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data import semconv
from leyden.core.data.failure import Failure
from leyden.core.data.order import rows_of_batch
from leyden.core.data.resources import NamedResources, Resource
from leyden.core.data.rollout import Rollout, Task
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.testing.factories import span

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")
RewardOf = Callable[[Mapping[str, Resource], Task], "float | tuple[float, str] | None"]
"""Reward of a rollout by its resources and its task, with or without feedback; None for no reward.

An exception makes it a failed rollout."""


class ScriptedPromptContext(Context):
    """Context without a policy, whose rollouts earn what `reward` returns."""

    policies = ()

    def __init__(
        self,
        tasks: Sequence[Task],
        resources: NamedResources,
        reward: RewardOf,
        *,
        held_out: Mapping[str, Sequence[Task]] | None = None,
        steps: int = 1,
        seed: int = 0,
        tasks_per_step: int = 4,
        reflect: Callable[[Sequence[Message]], str] | None = None,
    ) -> None:
        self.tasks, self.held_out = tasks, held_out or {}
        self.resources, self._reward = dict(resources), reward
        self.steps, self.step, self.seed = steps, 0, seed
        self._tasks_per_step = tasks_per_step
        self._reflect = reflect
        self.reflections: list[Sequence[Message]] = []
        """Conversations that the algorithm sent to its language model."""
        self.shown: list[str] = []
        """Lines that were shown."""
        self.versions: list[Mapping[str, Resource]] = [self.resources]
        """Published resources by version."""
        self.requests: list[RolloutRequest] = []
        """Every requested rollout, in order."""
        self.calls: list[str] = []
        """Evaluations by their label, computations by their phase, and other calls by their name."""
        self.lines: list[Mapping[str, Any]] = []
        """Logged metrics."""
        self._added: dict[str, NamedResources] = {}

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Raise AssertionError: there is no policy."""
        raise AssertionError(f"the policy {name} was loaded by an algorithm that trains none")

    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Record the call: there is no checkpoint."""
        self.calls.append("restore")

    async def collect(self) -> list[TrajectoryGroup]:
        """Raise AssertionError: rollouts are requested with `run_tasks`."""
        raise AssertionError("an algorithm without a policy collects no batches")

    def next_rows(self) -> list[int]:
        """Return the rows of the next step."""
        return rows_of_batch(len(self.tasks), self.step, self._tasks_per_step, self.seed)

    async def add_resources(self, changes: NamedResources) -> str:
        """Remember a version, and return its id; equal resources have the same id."""
        version = {**self.resources, **changes}
        known = next((name for name, resources in self._added.items() if resources == version), None)
        name = known or f"rs-{len(self._added)}"
        self._added[name] = version
        return name

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Return a result for each request, without spans except for feedback."""
        self.requests.extend(requests)
        return [self._result(request) for request in requests]

    def language_model(self, options: ModelOptions) -> LanguageModel:
        """Return the scripted reflection model."""
        del options
        return _ScriptedModel(self._reflect, self.reflections)

    def show(self, line: str) -> None:
        """Record the line."""
        self.shown.append(line)

    async def evaluate(self, label: str) -> None:
        """Record the label: no evaluation is run."""
        self.calls.append(label)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` at once in this thread."""
        self.calls.append(phase)
        return function(*args, **kwargs)

    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Count the step, and change the published resources."""
        self.calls.append("publish")
        self.resources = {**self.resources, **(resources or {})}
        self.versions.append(self.resources)
        self.step += 1
        return {}

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics."""
        self.lines.append(metrics)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Record the call."""
        self.calls.append(f"dropped {dict(Counter(reasons))}")

    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Record the call: nothing is saved."""
        self.calls.append("checkpoint")

    def _result(self, request: RolloutRequest) -> RolloutResult:
        resources = self.resources if request.resources_id is None else self._added[request.resources_id]
        tasks = self.tasks if request.held_out is None else self.held_out[request.held_out]
        reward, failure, spans = None, None, ()
        try:
            earned = self._reward(resources, tasks[request.row])
            if isinstance(earned, tuple):
                reward, feedback = earned
                spans = (span(semconv.REWARD, {semconv.REWARD_FEEDBACK: feedback}),)
            else:
                reward = earned
        except Exception as error:
            failure = Failure(kind="agent", type=type(error).__name__, message=str(error))
        rollout = Rollout(
            rollout_id=f"ro-{len(self.requests)}-{request.row}-{request.repeat}",
            input=tasks[request.row],
            start_time=0.0,
            resources_id=request.resources_id,
            status="succeeded" if failure is None else "failed",
        )
        return RolloutResult(
            request=request, rollout=rollout, reward=reward, dimensions={}, failure=failure, spans=spans, calls=()
        )


class _ScriptedModel(LanguageModel):
    """A language model that answers with the script's text."""

    name = "scripted"
    is_priced = True

    def __init__(self, reflect: Callable[[Sequence[Message]], str] | None, seen: list[Sequence[Message]]) -> None:
        self._reflect, self._seen = reflect, seen

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Return what the function returns."""
        assert self._reflect is not None, "the algorithm calls a language model, and the context was given none"
        self._seen.append(messages)
        return Completion(text=self._reflect(messages), input_tokens=1, output_tokens=1, cost=0.0)
