"""Context of a run: implements `algorithm.base.Context` with store, gateway, engine and run folder."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.account import FOUND_WHILE_LEARNING, Account
from leyden.core.algorithm.base import Context, StoredRollouts
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import TrainingError, UsageError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.alerts import AlertDetector
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.rollouts.collector import Collected, Collector
from leyden.core.trainer.rollouts.offline import described, read_stored
from leyden.core.trainer.rollouts.scheduler import Batches, make_batches
from leyden.core.trainer.run_folder.checkpoint_writer import CheckpointWriter
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.model_selection import ModelSelection, VersionScores
from leyden.core.trainer.run_folder.report import HeldOutResult, KeptVersion, PolicyTotals, RaisedAlert, RunReport
from leyden.core.trainer.run_folder.timing import TimeUsage
from leyden.core.trainer.run_folder.versions import Evaluation, VersionFile, reward_text
from leyden.core.trainer.serving.serving import Serving

if TYPE_CHECKING:
    from leyden.core.policy.checkpoints.checkpoint import Trained
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")


class RunContext(Context):
    """One session of a run."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        serving: Serving,
        collector: Collector,
        display: Display,
        *,
        trackers: Trackers,
        began: TimeUsage,
    ) -> None:
        self.folder, self.config, self.serving, self.collector = folder, config, serving, collector
        self.display, self.trackers = display, trackers
        self._began = began
        self.steps, self.seed = config.steps, config.seed
        self.policies = tuple(config.policies)
        self.step = 0
        self.batches: Batches = make_batches(LoopKind(), collector, self, {})
        self.report = RunReport(name=config.name, seed=config.seed)
        """Totals of all sessions. Its seconds cover the earlier sessions only; see `report_now`."""
        self._selection = ModelSelection(folder, config)
        self.writer = CheckpointWriter(folder.checkpoints, self._selection, config.keep_checkpoints)
        self._alert_detector = AlertDetector((), self.policies, config.off_policy)
        self._models: dict[str, PolicyModel] = {}
        self._prepared: dict[str, PolicyModel] = {}
        self._position: dict[str, Any] = {}
        """Position in the run's tasks at the last checkpoint."""
        self._step_began = time.monotonic()
        self._rollout_seconds = 0.0
        self._rollout_tokens = 0
        self._waited = self._engine_idle = 0.0

    # --- The policy

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Load the initial policy of this name, ready to train."""
        from leyden.core.policy.model import PolicyModel

        model = self._prepared.pop(name, None)
        with self.phase("load"):
            model = model or PolicyModel.load(self.config.policies[name], device=self.config.device)
        self._models[name] = model
        return model

    def prepare(self, models: "Mapping[str, PolicyModel]") -> None:
        """Make `models`, freshly loaded and unchanged, the next ones that `load_policy` returns."""
        self._prepared = dict(models)

    def prepared(self) -> "Mapping[str, PolicyModel]":
        """Return the models that `load_policy` returns next; raises TrainingError when none was prepared."""
        if not self._prepared:
            raise TrainingError("no policy was loaded ahead")
        return self._prepared

    def trained_policies(self) -> "Mapping[str, PolicyModel]":
        """Return the policies in their current state. Raises TrainingError for a policy that was never loaded."""
        if missing := [name for name in self.policies if name not in self._models]:
            raise TrainingError(f"the algorithm ended without having loaded the policy {', '.join(missing)}")
        return self._models

    def _checkpoint_content(self, updaters: "Mapping[str, Updater]") -> "Trained":
        """Return what a checkpoint stores: the single unnamed policy, or the policies by name."""
        return updaters if self.config.has_names else updaters[POLICY]

    @property
    def goes_on_after(self) -> int:
        """Step of the last checkpoint; 0 without one."""
        from leyden.core.policy.checkpoints.retention import latest_checkpoint, step_of

        latest = latest_checkpoint(self.folder.checkpoints)
        return 0 if latest is None else step_of(latest)

    async def restore(self, updaters: "Mapping[str, Updater]") -> None:
        """Restore the last checkpoint, if there is one, and serve the weights."""
        from leyden.core.policy.checkpoints.checkpoint import load_checkpoint
        from leyden.core.policy.checkpoints.retention import latest_checkpoint

        latest = latest_checkpoint(self.folder.checkpoints)
        if latest is None:
            self.folder.rewind_metrics(-1)
            self._selection.begin()
        else:
            progress = load_checkpoint(latest, self._checkpoint_content(updaters))
            self.step, self._position = progress["step"], progress["position"]
            self.batches = make_batches(LoopKind(), self.collector, self, self._position)
            self.report = msgspec.convert(progress["report"], RunReport)
            self.collector.lineage = progress.get("lineage", "")
            if self._selection.restore(self.step, latest, progress):
                self.steps = self.step
            else:
                self.report.stopped_early = None
            evaluated = self.step < self.steps or self._selection.is_scored(self.step)
            self.folder.rewind_metrics(self.step, evaluations=evaluated)
            lines = [line for line in self.folder.metrics() if not line.keys() & {"held_out", "alert"}]
            self._alert_detector = AlertDetector(lines, self.policies, self.config.off_policy)
            self.display.show(f"going on after step {self.step} of {self.steps}")
        await self.serving.serve({name: updater.model for name, updater in updaters.items()}, self.step)
        self.display.start(self.steps, self.step)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread and return its result; its time counts under `phase`."""
        self.display.phase(phase)
        with self.phase(phase):
            async with self.serving.asleep():
                return await asyncio.to_thread(function, *args, **kwargs)

    async def publish(self, models: "Mapping[str, PolicyModel]") -> dict[str, float]:
        """Serve the models' weights as the next version.

        Returns the differences between served and trained log-probabilities.
        """
        await self._wait(self.batches.settle)
        with self.phase("publish"):
            gaps = await self.serving.serve(models, self.step + 1)
        self.step += 1
        self.batches.step_taken()
        return gaps

    async def checkpoint(self, updaters: "Mapping[str, Updater]") -> None:
        """End the step: evaluate if due, and save models, optimizers, random states and position.

        Saves every `checkpoint_every` steps, after the last step, and for the best version so far. The checkpoint is
        written while the next rollouts run.
        """
        if self._selection.is_due(self.step, self.steps):
            await self.evaluate("during")
            self._stop_early()
        self._selection.record(self.step)
        best = self._selection.is_best(self.step)
        if self.step % self.config.checkpoint_every and self.step != self.steps and not best:
            return
        with self.phase("checkpoint"):
            content = self._checkpoint_content(updaters)
            await self.writer.begin(self.step, content, self._progress(), mark=best)

    def _progress(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "position": self.batches.position(),
            "lineage": self.collector.lineage,
            "report": msgspec.to_builtins(self.report_now()),
            **self._selection.progress(self.step),
        }

    def _stop_early(self) -> None:
        why = self._selection.stop_early(self.step, self.steps)
        if why is not None:
            self.steps, self.report.stopped_early = self.step, why
            self.display.show(f"stopping early: {why}")

    @property
    def versions(self) -> VersionFile:
        """Records of the run's versions."""
        return self._selection.versions

    def keep_for_good(self) -> KeptVersion:
        """Choose the version that the finished run keeps, record it in the report, and return it."""
        self.report.kept = self._selection.kept(self.step)
        return self.report.kept

    # --- Rollouts

    @asynccontextmanager
    async def collecting(self, pace: LoopKind) -> AsyncGenerator[None]:
        """Context manager: collects at `pace` inside the block, from the position of the last checkpoint.

        Raises UsageError for a pace that a deterministic run, or vLLM's sleep mode, does not allow.
        """
        if self.config.deterministic and pace.loop == "async":
            raise UsageError(
                "a deterministic run cannot have loop async, which learns from what finishes first; set loop=one_off"
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
        self._step_began, self._waited = time.monotonic(), 0.0
        self._engine_idle = self.collector.idle.seconds
        collected = await self._wait(self.batches.next)
        self._rollout_seconds, self._rollout_tokens = collected.seconds, collected.tokens
        self._count(collected)
        return collected.groups

    async def stored(self, source: str) -> StoredRollouts:
        """Read the rollouts of another run or of a store. Each session reads the same rollouts as the first one."""
        with self.phase("read"):
            found = await read_stored(source, self.folder, self.config)
        self.report.stored[source] = described(found)
        return found

    async def _wait(self, function: Callable[[], Awaitable[R]]) -> R:
        """Await `function` and count its time as waiting for rollouts, during which no training runs."""
        began = time.monotonic()
        with self.phase("rollouts"):
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

    async def _evaluate(self, label: str) -> None:
        if not self._selection.is_scored(self.step):
            self._selection.score(await self._run_held_out(label))
        scores = self._selection.scores
        if scores is not None and label in ("before", "after"):
            self.report.note_held_out(label, scores.held_out, scores.sampled)
            self.report.note_sides(label, scores.sides)

    async def _run_held_out(self, label: str) -> VersionScores:
        scores = VersionScores.none(self.step, self.config.sides)
        for held_out in self.config.held_out:
            for sampled in (False, True) if self.config.evaluate_sampled else (False,):
                own = scores.sampled if sampled else scores.held_out
                sides: dict[str, Evaluation] = {}
                if self.config.sides:
                    sides = await self._measure_sides(held_out.name, label, sampled=sampled)
                    scores.note(held_out.name, sides, sampled=sampled, acting=self.config.acting)
                else:
                    own[held_out.name] = await self._measure(held_out.name, label, sampled=sampled)
                self._report_held_out(held_out.name, label, sampled, own[held_out.name], sides)
        return scores

    async def _measure_sides(self, name: str, label: str, *, sampled: bool) -> dict[str, Evaluation]:
        """Return what the policy of each side earned.

        Before the first step all sides have the same weights. One of them is then evaluated for all.
        """
        measured = self.config.sides if self.step else self.config.acting[:1]
        found = {side: await self._measure(name, label, sampled=sampled, side=side) for side in measured}
        return {side: found.get(side) or found[measured[0]] for side in self.config.sides}

    async def _measure(self, name: str, label: str, *, sampled: bool, side: str | None = None) -> Evaluation:
        with self.phase("evaluate"):
            collected = await self.collector.evaluate(name, label, sampled=sampled, version=self.step, side=side)
        self._count(collected)
        self.report.held_out.setdefault(name, HeldOutResult(tasks=len(collected.groups)))
        success = None if math.isnan(collected.success) else collected.success
        return Evaluation(success=success, rewards=collected.rewards)

    def _report_held_out(
        self, name: str, label: str, sampled: bool, found: Evaluation, sides: Mapping[str, Evaluation]
    ) -> None:
        how, note = ("sampled", " (sampled, temperature 1)") if sampled else ("success", "")
        when = f"after step {self.step}" if label == "during" else label
        each = {side: own.success for side, own in sides.items()}
        scores = {f"{side} ": own for side, own in sides.items()} or {"": found}
        means = ", ".join(f"{side}{reward_text(own.success, is_share=own.is_share)}" for side, own in scores.items())
        self.display.show(f"held out, {when}: {means} on {name}{note}")
        line = {"step": self.step, "held_out": name, how: found.success}
        self.folder.append_metrics({**line, "sides": each} if each else line)
        tracked = {f"{side}/held_out/{name}/{how}": own for side, own in each.items()}
        self.trackers.log(self.step, {f"held_out/{name}/{how}": found.success, **tracked})

    def _count(self, collected: Collected) -> None:
        report = self.report
        report.rollouts += collected.rollouts
        report.failed_rollouts += collected.failed
        report.empty_rollouts += collected.empty
        report.unrewarded_rollouts += collected.unrewarded
        report.tokens_generated += collected.tokens
        report.note_failures(collected.failures.most_common())
        _add(report.excluded_calls, collected.excluded)

    # --- Numbers

    def report_now(self) -> RunReport:
        """Return the report with the seconds of this session added to those of the earlier ones."""
        used = TimeUsage.now().since(self._began)
        return msgspec.structs.replace(
            self.report,
            seconds=self.report.seconds + used.seconds,
            cpu_seconds=self.report.cpu_seconds + used.cpu_seconds,
        )

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        """Write what became of a batch's rollouts and calls into the folder, and count it in the report."""
        self.folder.append_learned(step, accounts)
        for account in accounts:
            self.report.rollouts_trained += len(account.trained)
            _add(self.report.rollouts_left_out, {reason: len(ids) for reason, ids in account.rollouts.items()})
            own = {reason: len(ids) for reason, ids in account.calls.items() if reason in FOUND_WHILE_LEARNING}
            _add(self.report.excluded_calls, own)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out of a step."""
        _add(self.report.dropped_groups, reasons)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics line of the step, send it to the trackers, and update the display."""
        self.report.steps = self.step
        self.report.tokens_trained += int(metrics["tokens_trained"])
        self.report.transitions += int(metrics["transitions_trained"])
        self._count_by_policy(metrics)
        line = {
            "step": self.step,
            **metrics,
            **(self._pace() if self._rollout_seconds else {}),
            "seconds": time.monotonic() - self._step_began,
        }
        self._step_began = time.monotonic()
        self.folder.append_metrics(line)
        self._selection.note(line)
        self.trackers.log(self.step, line | self._alerts(line))
        self.display.step(self.step, line)

    def _count_by_policy(self, metrics: Mapping[str, Any]) -> None:
        for name in self.policies if len(self.policies) > 1 else ():
            own = self.report.policies.setdefault(name, PolicyTotals())
            trained = int(metrics.get(f"{name}/transitions_trained", 0))
            own.steps += bool(trained)
            own.transitions += trained
            own.tokens += int(metrics.get(f"{name}/tokens_trained", 0))

    def _pace(self) -> dict[str, float]:
        """Return speed and timing of the step's rollouts."""
        return {
            "tokens_per_second": self._rollout_tokens / max(self._rollout_seconds, 1e-9),
            "seconds_rollouts": self._rollout_seconds,
            "seconds_trainer_idle": self._waited,
            "seconds_engine_idle": self.collector.idle.seconds - self._engine_idle,
        }

    def _alerts(self, line: Mapping[str, Any]) -> dict[str, float]:
        """Report the alerts that begin with this step.

        Returns 1.0 or 0.0 for each alert raised so far, by whether it is active.
        """
        begun = self._alert_detector.add(line)
        for alert in self.report.alerts:
            if alert.until is None and alert.name not in self._alert_detector.active:
                alert.until = self.step
        for name, message in begun.items():
            self.report.alerts.append(RaisedAlert(name=name, since=self.step, message=message))
            self.folder.append_metrics({"step": self.step, "alert": name, "message": message})
            self.display.show(f"alert, step {self.step}: {message}")
        return {f"alert/{alert.name}": float(alert.name in self._alert_detector.active) for alert in self.report.alerts}

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Context manager: counts the block's time under `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            _add(self.report.seconds_by_phase, {name: time.monotonic() - began})


N = TypeVar("N", int, float)


def _add(counts: dict[str, N], more: Mapping[str, N] | Counter[str]) -> None:
    for reason, count in more.items():
        counts[reason] = counts.get(reason, type(count)()) + count  # pyright: ignore[reportArgumentType]


def held_out_curve(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return (step, success) points of the first held-out set, with the agent's own sampling.

    `metrics` are the lines of `metrics.jsonl`.
    """
    lines = [line for line in metrics if "success" in line]
    return [(line["step"], line["success"]) for line in lines if line["held_out"] == lines[0]["held_out"]]
