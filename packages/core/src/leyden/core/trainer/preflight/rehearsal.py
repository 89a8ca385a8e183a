"""Rehearsal context: lets an algorithm take one step on a copy of the policy, serves the copy, and undoes both.

The rollouts are those with which the run begins, under the same ids, so that the run later finds them finished.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from leyden.core.algorithm.base import NO_POLICY, Algorithm, Context, StoredRollouts
from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import NamedResources
from leyden.core.data.route import POLICY
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.engine.base import EnginePrecision
from leyden.core.errors import EngineError, TrainingError
from leyden.core.trainer.preflight.calls import (
    check_calls,
    check_prompts,
    check_rollouts,
    check_selection,
    check_tokens,
)
from leyden.core.trainer.preflight.evidence import Evidence, Rehearsal
from leyden.core.trainer.preflight.rewards import check_rewards
from leyden.core.trainer.rollouts.collector import Collected
from leyden.core.trainer.rollouts.recorded import read_rollout
from leyden.core.trainer.serving.serving import SERVED_GAP, prompt_gap

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater
    from leyden.core.trainer.context.run_context import RunContext

P = ParamSpec("P")
R = TypeVar("R")

ENOUGH_ROLLOUTS = 96
"""Number of rollouts after which equal rewards are not explained by chance; see `rewards.check_spread`."""
MOST_BATCHES = 7
"""Maximum number of batches, one less than `lightning_rl` takes before it gives up. A pattern not found by then is
reported as possible chance."""
MOST_INSPECTED = 32
"""Maximum number of rollouts with problems whose spans are read."""
FAR: dict[EnginePrecision, float] = {"float32": 50.0, "bfloat16": 5.0, "int8": 5.0}
"""Factor by which served weights must differ from old ones, relative to the limit of rounding, so that old weights are
detected, also where a single matrix of the model is old. Rounded weights that differ by more are useless as a policy.
"""
MOST_PERTURBATIONS = 12
"""Maximum number of perturbations of the weights, each twice as strong, until they differ by that factor."""


class _RehearsalEnded(Exception):
    """Raised to end the rehearsal when it has enough evidence."""


class TrialContext(Context):
    """Rehearsal context: collects the run's first rollouts into `evidence` and records the results of one update."""

    def __init__(self, real: "RunContext", evidence: Evidence) -> None:
        self.real, self.evidence = real, evidence
        self.steps, self.seed = real.steps, real.seed
        self.policies = real.policies
        self.tasks, self.held_out, self.resources = real.tasks, real.held_out, real.resources
        self.step = 0
        self._pace = LoopKind()
        self._before: dict[str, dict[str, tuple[float, float]]] = {}

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Load the initial policy; updates of it are not kept."""
        from leyden.core.policy.probe import fingerprint

        model = self.real.load_policy(name)
        self._before[name] = fingerprint(model)
        return model

    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Restore what the algorithm saved in a check that was killed; there is no checkpoint."""
        if not self.policies:
            self.state = self.real.first_state()

    @asynccontextmanager
    async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
        """Record the pace; the rehearsal itself collects batch by batch."""
        self._pace = pace
        yield

    async def collect(self) -> list[TrajectoryGroup]:
        """Return the groups of the run's next batch; end the rehearsal if further batches would not add evidence."""
        done = self.evidence.batches
        if self.step or (done and (self._is_hopeless() or self._is_enough())):
            raise _RehearsalEnded
        with self.real.journal.phase("rollouts"):
            collected = await self._batch(len(done))
        done.append(collected)
        await self._inspect(collected)
        if len(done) == 1:
            await self._read_all(collected)
        return collected.groups

    def next_rows(self) -> list[int]:
        """Return the rows of the run's first step."""
        return self.real.next_rows()

    async def add_resources(self, changes: NamedResources) -> str:
        """Add a version of the resources, which the run will find in the store."""
        return await self.real.add_resources(changes)

    def language_model(self, options: ModelOptions) -> LanguageModel:
        """Return the run's model. Its answers are kept for the run, like other state of the algorithm."""
        return self.real.language_model(options)

    def call_cost(self, call: Span) -> float | None:
        """Return what a model call of the agent cost."""
        return self.real.call_cost(call)

    def save_state(self, state: Any) -> None:
        """Save the state that the run continues from, unless an update of the weights came before it."""
        if not self.policies:
            self.real.save_state(state)
        self.state = state

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Run the first rollouts that the algorithm requests, which the run then finds finished.

        Without a policy, they are all evidence there is: the rehearsal ends.
        """
        with self.real.journal.phase("rollouts"):
            collected, results = await self.real.collector.requested(1, self.real.named(requests))
        self.evidence.batches.append(collected)
        await self._inspect(collected)
        await self._read_all(collected)
        if not self.policies:
            raise _RehearsalEnded
        return results

    async def stored(self, source: str) -> StoredRollouts:
        """Read the stored rollouts that the run will read."""
        return await self.real.stored(source)

    async def evaluate(self, label: str) -> None:
        """Do nothing: a rehearsal does not evaluate."""

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread and return its result."""
        self.real.journal.display.phase(f"check: {phase}")
        async with self.real.serving.asleep():
            return await asyncio.to_thread(function, *args, **kwargs)

    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Serve the updated weights; new resources are not published.

        If the update is too small to distinguish old from new weights, perturbed weights are served as well.
        """
        del resources
        if not models:
            raise _RehearsalEnded
        found = self.evidence.rehearsal
        old = {name: await self._served(name) for name in models}
        await self._count_changes(models)
        moved = {name: await self._distance(name, model, old[name]) for name, model in models.items()}
        gaps = await self._serve(models)
        shown = {name: await self._perturbed(name, model, old[name], moved[name]) for name, model in models.items()}
        found.moved, found.shown, found.gap = min(moved.values()), min(shown.values()), max(gaps.values())
        if shown != moved:
            found.gap = max(found.gap, *(await self._serve(models)).values())
        self.step = self.steps
        return gaps

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Store the metrics of the step."""
        self.evidence.rehearsal.metrics = metrics

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Do nothing: the run will meet the same groups again."""

    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Do nothing: a rehearsal keeps no checkpoint."""

    async def _batch(self, index: int) -> Collected:
        collector, size = self.real.collector, self.real.config.tasks_per_step
        if self._pace.loop != "async":
            return await collector.train(index, version=0)
        on_finished = self.real.journal.display.advance
        whole = Collected()
        groups = [collector.group(number, on_finished) for number in range(index * size, (index + 1) * size)]
        for collected in await asyncio.gather(*groups):
            whole.include(collected)
        return whole

    async def _inspect(self, collected: Collected) -> None:
        inspected = self.evidence.inspected
        odd = [t for group in collected.groups for t in group.trajectories if _is_odd(t)]
        for trajectory in odd[: MOST_INSPECTED - len(inspected)]:
            inspected.append(await read_rollout(self.real.serving.store, trajectory.rollout_id))

    async def _read_all(self, collected: Collected) -> None:
        store = self.real.serving.store
        ids = [trajectory.rollout_id for group in collected.groups for trajectory in group.trajectories]
        self.evidence.rollouts.extend([await read_rollout(store, rollout_id) for rollout_id in ids])
        lines = [(worker.heartbeat_stats or {}).get("isolation") for worker in await store.query_workers()]
        self.evidence.isolation.extend(dict.fromkeys(line for line in lines if line))

    def _is_hopeless(self) -> bool:
        certain = (check_rollouts, check_calls, check_tokens, check_selection, check_prompts, check_rewards)
        return any(check(self.evidence).status == "failure" for check in certain)

    def _is_enough(self) -> bool:
        return len(self.evidence.batches) >= MOST_BATCHES or self.evidence.total("rollouts") >= ENOUGH_ROLLOUTS

    async def _served(self, name: str) -> list[float]:
        policy = self.real.serving.policies[name]
        return await policy.engine.score(policy.check_ids)

    async def _count_changes(self, models: "Mapping[str, PolicyModel]") -> None:
        from leyden.core.policy.probe import changed

        found = self.evidence.rehearsal
        for name, model in models.items():
            now, weights = await asyncio.to_thread(changed, self._before[name], model)
            found.changed, found.weights = found.changed + now, found.weights + weights
            found.unchanged += () if now else (name,)

    async def _perturbed(self, name: str, model: "PolicyModel", old: Sequence[float], moved: float) -> float:
        """Perturb a model that is too close to the weights served before; return the final distance."""
        from leyden.core.policy.probe import shake

        precision = self.real.serving.policies[name].engine.precision
        for attempt in range(MOST_PERTURBATIONS):
            if moved >= FAR[precision] * SERVED_GAP[precision]:
                break
            await asyncio.to_thread(shake, model, 0.01 * 2**attempt)
            moved = await self._distance(name, model, old)
        return moved

    async def _distance(self, name: str, model: "PolicyModel", old: Sequence[float]) -> float:
        from leyden.core.policy.logprobs import score

        policy = self.real.serving.policies[name]
        now = await asyncio.to_thread(score, model.in_precision("float32"), policy.check_ids)
        return prompt_gap(now, old, policy.engine.precision)

    async def _serve(self, models: "Mapping[str, PolicyModel]") -> dict[str, float]:
        try:
            return await self.real.serving.serve(models, 1)
        except EngineError as error:
            self.evidence.rehearsal.not_served = str(error)
            raise _RehearsalEnded from error


async def rehearse(algorithm: Algorithm, real: "RunContext", evidence: Evidence) -> None:
    """Let `algorithm` take one step, record the results in `evidence.rehearsal`, and restore everything.

    Raises UsageError for errors that the user must fix first, such as a reward that is not a number.
    """
    trial = TrialContext(real, evidence)
    try:
        await algorithm.run(trial)
    except _RehearsalEnded:
        real.journal.display.phase("check")
    except TrainingError as error:
        evidence.rehearsal.failed = str(error)
    await _restore(real, evidence.rehearsal)


async def _restore(real: "RunContext", found: Rehearsal) -> None:
    """Serve the initial weights again; their models are passed on to the run, which trains them."""
    models = {name: await asyncio.to_thread(real.load_policy, name) for name in real.policies}
    try:
        await real.serving.serve(models, 0, first=True)
    except EngineError as error:
        found.not_restored = str(error)
    real.models.prepare(models)


def _is_odd(trajectory: Trajectory) -> bool:
    return not trajectory.succeeded or bool(trajectory.excluded) or not trajectory.transitions
