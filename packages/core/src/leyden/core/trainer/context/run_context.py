"""Context of a run: implements `algorithm.base.Context` with store, gateway, engine and run folder."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.account import Account, account_of_results
from leyden.core.algorithm.base import NO_POLICY, Context, StoredRollouts
from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.order import rows_of_batch
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.route import POLICY
from leyden.core.data.span import Span
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError
from leyden.core.gateway.upstream.prices import PriceList
from leyden.core.policy.checkpoints.retention import latest_checkpoint, read_progress, step_of
from leyden.core.policy.update.token_record import TokenRecord
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.combinations import CombinationEvaluation
from leyden.core.trainer.context.resource_versions import ResourceVersions
from leyden.core.trainer.context.run_journal import RunJournal, pace
from leyden.core.trainer.context.trained_policies import TrainedPolicies
from leyden.core.trainer.context.watched_model import WatchedModel
from leyden.core.trainer.rollouts.collector import Collector
from leyden.core.trainer.rollouts.offline import described, read_stored
from leyden.core.trainer.rollouts.scheduler import Batches, make_batches
from leyden.core.trainer.run_folder.algorithm_state import AlgorithmState
from leyden.core.trainer.run_folder.checkpoint_writer import CheckpointWriter
from leyden.core.trainer.run_folder.model_selection import VersionScores
from leyden.core.trainer.run_folder.versions import Evaluation
from leyden.core.trainer.serving.language_models import open_language_model
from leyden.core.trainer.serving.serving import Serving

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")


class RunContext(Context):
    """One session of a run."""

    def __init__(
        self,
        config: RunConfig,
        journal: RunJournal,
        serving: Serving,
        collector: Collector,
        versions: ResourceVersions | None = None,
    ) -> None:
        self.config, self.journal, self.serving, self.collector = config, journal, serving, collector
        self._versions = versions
        self.steps, self.seed = config.steps, config.seed
        self.policies = tuple(config.policies)
        self.step = 0
        self.batches: Batches = make_batches(LoopKind(), collector, self, {})
        self.models = TrainedPolicies(config, journal.phase)
        self._checkpoints = journal.folder.checkpoints
        self._writer = CheckpointWriter(self._checkpoints, journal.selection, config.keep_checkpoints)
        self._position: dict[str, Any] = {}
        """Position in the run's tasks at the last checkpoint."""
        self._rollout_seconds = 0.0
        self._rollout_tokens = 0
        self._waited = self._engine_idle = 0.0
        self._state = AlgorithmState(journal.folder)
        self._results: dict[RolloutRequest, RolloutResult] = {}
        """Results of single rollouts that the algorithm requested in the current step."""
        self._ran: dict[str, int] = {}
        """Metrics of the single rollouts of the step that was just published."""
        self._prices: PriceList | None = None
        if versions is not None:
            self.tasks, self.held_out = collector.tasks, collector.held_out
            self._note_resources(versions)

    # --- The policy

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Load the initial policy of this name, ready to train."""
        return self.models.load(name)

    @property
    def goes_on_after(self) -> int:
        """Step of the last checkpoint; 0 without one."""
        latest = latest_checkpoint(self._checkpoints)
        return 0 if latest is None else step_of(latest)

    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Restore the last checkpoint, if there is one, and serve the weights and resources."""
        latest = latest_checkpoint(self._checkpoints)
        if latest is None:
            self.journal.start()
            self.state = self.first_state()
        else:
            progress = self._load(latest, updaters)
            self.step, self._position = progress["step"], progress["position"]
            self.batches = make_batches(LoopKind(), self.collector, self, self._position)
            self.collector.lineage = progress.get("lineage", "")
            self.state = self._state.restore(self.step, self.collector.lineage, progress.get("state"))
            if "resources" in progress:
                await self._publish_resources(msgspec.convert(progress["resources"], NamedResources))
            if self.journal.resume(self.step, latest, progress):
                self.steps = self.step
        await self.serving.serve({name: updater.model for name, updater in updaters.items()}, self.step)
        self.journal.display.start(self.steps, self.step)
        await self.journal.follow(self.serving.store, self.step)

    def _load(self, checkpoint: Path, updaters: "Mapping[str, Updater]") -> dict[str, Any]:
        """Restore the updaters from a checkpoint, and return its progress. Imports torch only for updaters."""
        if not self.policies:
            return read_progress(checkpoint)
        from leyden.core.policy.checkpoints.checkpoint import load_checkpoint

        return load_checkpoint(checkpoint, self.models.checkpoint_content(updaters))

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread and return its result; its time counts under `phase`."""
        self.journal.display.phase(phase)
        with self.journal.phase(phase):
            async with self.serving.asleep():
                return await asyncio.to_thread(function, *args, **kwargs)

    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Serve the models' weights as the next version, and let later rollouts run with `resources`.

        Returns the differences between served and trained log-probabilities.
        """
        changed = None if resources is None else self._stored_versions().changed(resources)
        await self._wait(self.batches.settle)
        with self.journal.phase("publish"):
            gaps = await self.serving.serve(models, self.step + 1)
            if changed is not None:
                await self._publish_resources(changed)
        self.step += 1
        training = [result for result in self._results.values() if result.request.held_out is None]
        self._ran = {"rollouts": len(training), "calls": sum(len(result.calls) for result in training)}
        self._results.clear()
        self.batches.step_taken()
        return gaps

    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """End the step: evaluate if due, and save models, optimizers, random states, resources and position.

        Saves every `checkpoint_every` steps, after the last step, and for the best version so far. The checkpoint is
        written while the next rollouts run.
        """
        selection = self.journal.selection
        if selection.is_due(self.step, self.steps):
            await self.evaluate("during")
            self._stop_early()
        selection.record(self.step)
        best = selection.is_best(self.step)
        if best or self.step == self.steps or self.step % self.config.checkpoint_every == 0:
            with self.journal.phase("checkpoint"):
                content = self.models.checkpoint_content(updaters)
                await self._writer.begin(self.step, content, self._progress(), mark=best)
        await self.journal.catch_up()

    def _progress(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "position": self.batches.position(),
            "lineage": self.collector.lineage,
            "resources": msgspec.to_builtins(self.resources),
            "state": self.state,
            **self.journal.progress(self.step),
        }

    def _stop_early(self) -> None:
        why = self.journal.selection.stop_early(self.step, self.steps)
        if why is not None:
            self.steps, self.journal.report.stopped_early = self.step, why
            self.journal.display.show(f"stopping early: {why}")

    async def finish(self) -> None:
        """Return when the last checkpoint is complete; raises TrainingError if it could not be written."""
        with self.journal.phase("checkpoint"):
            await self._writer.finish()

    async def close(self) -> None:
        """End the session: finish a checkpoint that is being written."""
        await self._writer.close()

    # --- Resources and the algorithm's own state

    async def add_resources(self, changes: NamedResources) -> str:
        """Add a version of the resources to the store, and return its id."""
        versions = self._stored_versions()
        return await versions.add(versions.changed(changes))

    def language_model(self, options: ModelOptions) -> LanguageModel:
        """Return the model that the options name."""
        model = open_language_model(options, self.serving.served, self.config.endpoint, self.serving.endpoint_key)
        return WatchedModel(model, self.journal)

    def call_cost(self, call: Span) -> float | None:
        """Return what a model call cost, by the price list of the endpoint's provider."""
        if self._prices is None:
            endpoint = self.config.endpoint
            priced = None if endpoint is None or endpoint.policy is not None else endpoint
            self._prices = PriceList(None if priced is None else LLM(endpoint=priced.url, model=priced.model))
        return self._prices.call_cost(call)

    def show(self, line: str) -> None:
        """Show a line above the progress bar."""
        self.journal.display.show(line)

    def first_state(self) -> Any:
        """Return the state that the algorithm saved before its first step, also in the check; None without any."""
        return self._state.restore(0, "", None)

    def save_state(self, state: Any) -> None:
        """Write the algorithm's state to disk."""
        self.state = self._state.save(self.step, self.collector.lineage, state)

    def _stored_versions(self) -> ResourceVersions:
        if self._versions is None:
            raise UsageError("this context has no store for resources")
        return self._versions

    async def _publish_resources(self, resources: NamedResources) -> None:
        versions = self._stored_versions()
        await versions.publish(resources)
        self._note_resources(versions)

    def _note_resources(self, versions: ResourceVersions) -> None:
        self.resources = versions.resources
        self.collector.resources_id = versions.resources_id
        self.journal.selection.note_resources(versions.resources_id, versions.resources)

    # --- Rollouts

    @asynccontextmanager
    async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
        """Context manager: collects at `pace` inside the block, from the position of the last checkpoint.

        Raises UsageError for a pace that a deterministic run, or vLLM's sleep mode, does not allow.
        """
        if self.config.deterministic and pace.loop == "async":
            raise UsageError(
                "a deterministic run cannot have loop async, which learns from the rollouts that finish first; set "
                "loop=one_off"
            )
        if self.config.vllm.sleep and pace.loop != "sync":
            raise UsageError(f"vllm.sleep stops all calls while the trainer computes; loop={pace.loop} needs them")
        self.batches = make_batches(pace, self.collector, self, self._position)
        try:
            yield
        finally:
            await self.batches.close()

    async def collect(self) -> list[TrajectoryGroup]:
        """Run the agent on the next tasks and return their groups.

        Groups that an earlier session finished are read from the store, not run again.
        """
        self.journal.begin_step()
        self._waited = 0.0
        self._engine_idle = self.collector.idle.seconds
        collected = await self._wait(self.batches.next)
        self._rollout_seconds, self._rollout_tokens = collected.seconds, collected.tokens
        self.journal.count(collected)
        return collected.groups

    def next_rows(self) -> list[int]:
        """Return the rows of the training tasks of the next step."""
        return rows_of_batch(len(self.tasks), self.step, self.config.tasks_per_step, self.seed)

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Run the rollouts, except those that the current step has run before, and return all results in order."""
        named = self.named(requests)
        new = [request for request in dict.fromkeys(named) if request not in self._results]
        if new:
            with self.journal.phase("rollouts"):
                collected, results = await self.collector.requested(self.step + 1, new)
            self._rollout_seconds += collected.seconds
            self._rollout_tokens += collected.tokens
            self.journal.count(collected)
            self._results.update(zip(new, results, strict=True))
            self.account(self.step + 1, [account_of_results(results)])
        return [self._results[request] for request in named]

    def named(self, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
        """Return the requests with the ids of their versions; raises UsageError for a task that does not exist."""
        published = self._stored_versions().resources_id
        for request in requests:
            tasks = self.tasks if request.held_out is None else self.held_out.get(request.held_out, ())
            if not 0 <= request.row < len(tasks):
                where = "the training set" if request.held_out is None else f"held-out set {request.held_out!r}"
                raise UsageError(f"there is no task {request.row} in {where}")
        replace = msgspec.structs.replace
        return [replace(request, resources_id=request.resources_id or published) for request in requests]

    async def stored(self, source: str) -> StoredRollouts:
        """Read the rollouts of another run or of a store. Each session reads the same rollouts as the first one."""
        with self.journal.phase("read"):
            found = await read_stored(source, self.journal.folder, self.config)
        self.journal.report.stored[source] = described(found)
        return found

    async def _wait(self, function: Callable[[], Awaitable[R]]) -> R:
        """Await `function` and count its time as waiting for rollouts, during which no training runs."""
        began = time.monotonic()
        with self.journal.phase("rollouts"):
            result = await function()
        self._waited += time.monotonic() - began
        return result

    async def evaluate(self, label: str) -> None:
        """Run every held-out task with the agent's own sampling, and optionally also with the training sampling.

        One version answers all tasks, because new weights are published only afterwards. No training rollout starts
        meanwhile.
        """
        with self.batches.paused():
            await self._evaluate(label)
        await self.journal.catch_up()

    async def _evaluate(self, label: str) -> None:
        selection, report = self.journal.selection, self.journal.report
        if not selection.is_scored(self.step):
            selection.score(await self._run_held_out(label))
        scores = selection.scores
        if scores is not None and label in ("before", "after"):
            report.note_held_out(label, scores.held_out, scores.sampled)
            report.note_sides(label, scores.sides)

    async def _run_held_out(self, label: str) -> VersionScores:
        scores = VersionScores.none(self.step, self.config.sides)
        for held_out in self.config.held_out:
            for sampled in (False, True) if self.config.evaluate_sampled and self.policies else (False,):
                own = scores.sampled if sampled else scores.held_out
                sides: dict[str, Evaluation] = {}
                if self.config.sides:
                    sides = await self._measure_sides(held_out.name, label, sampled=sampled)
                    scores.note(held_out.name, sides, sampled=sampled, acting=self.config.acting)
                else:
                    own[held_out.name] = await self._measure(held_out.name, label, sampled=sampled)
                self.journal.report_held_out(
                    self.step, held_out.name, label, own[held_out.name], sampled=sampled, sides=sides
                )
        return scores

    async def _measure_sides(self, name: str, label: str, *, sampled: bool) -> dict[str, Evaluation]:
        """Return what the policy of each side earned.

        Before the first step all sides have the same weights. One of them is then evaluated for all.
        """
        measured = self.config.sides if self.step else self.config.acting[:1]
        found = {side: await self._measure(name, label, sampled=sampled, side=side) for side in measured}
        return {side: found.get(side) or found[measured[0]] for side in self.config.sides}

    async def _measure(
        self, name: str, label: str, *, sampled: bool, side: str | None = None, resources_id: str | None = None
    ) -> Evaluation:
        with self.journal.phase("evaluate"):
            collected = await self.collector.evaluate(
                name, label, sampled=sampled, version=self.step, side=side, resources_id=resources_id
            )
        self.journal.count(collected)
        return self.journal.evaluation(name, collected, tasks=len(collected.groups))

    async def _measure_with(self, name: str, label: str, resources_id: str | None = None) -> Evaluation:
        return await self._measure(name, label, sampled=False, resources_id=resources_id)

    def divide_groups(self, resources_ids: Sequence[str]) -> None:
        """Let the training rollouts of each task run with these versions in turn."""
        self.collector.divided = tuple(resources_ids)

    async def evaluate_combinations(self, models: "Mapping[str, PolicyModel]") -> None:
        """Evaluate initial and final weights with initial and final prompts, and put the table into the report."""
        evaluation = CombinationEvaluation(
            held_out=tuple(one.name for one in self.config.held_out),
            measure=self._measure_with,
            serving=self.serving,
            initial=self.models.initial,
            versions=self._stored_versions(),
        )
        await evaluation.run(models, self.step, self.journal.report)

    # --- Numbers

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        """Record what became of a batch's rollouts and calls."""
        self.journal.account(step, accounts)

    def record_tokens(self, record: TokenRecord) -> None:
        """Write what the step computed for each trained token, unless the run is to keep no such files."""
        if self.config.record_tokens:
            self.journal.folder.token_records.write(self.step, record)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out of a step."""
        self.journal.count_dropped(reasons)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of the step, and the number and speed of its rollouts."""
        engine_idle = self.collector.idle.seconds - self._engine_idle
        speed = pace(self._rollout_seconds, self._rollout_tokens, trainer_idle=self._waited, engine_idle=engine_idle)
        self._rollout_seconds, self._rollout_tokens = 0.0, 0
        if not self.policies:  # nothing is served here that could be idle
            metrics = {**self._ran, **metrics}
            speed = {name: value for name, value in speed.items() if not name.endswith("_idle")}
        self.journal.log(self.step, metrics, speed)
