"""Journal of a run: records its results in the run's folder, store and report, on the display and in trackers."""

import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leyden.core.algorithm.account import FOUND_WHILE_LEARNING, Account
from leyden.core.data.run import PROMPT_NOTE
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig, endpoint_name
from leyden.core.trainer.monitoring.alerts import AlertDetector
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.trackers import Trackers
from leyden.core.trainer.rollouts.collector import Collected
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.model_selection import ModelSelection
from leyden.core.trainer.run_folder.report import HeldOutResult, KeptVersion, PolicyTotals, RaisedAlert, RunReport
from leyden.core.trainer.run_folder.run_sync import StoreSync, status_after
from leyden.core.trainer.run_folder.sharing.artifact_sync import ArtifactSync
from leyden.core.trainer.run_folder.sharing.artifacts import Artifacts, url_of_run
from leyden.core.trainer.run_folder.timing import TimeUsage
from leyden.core.trainer.run_folder.versions import Evaluation, reward_text


class RunJournal:
    """Results of one session of a run, on top of those of earlier sessions."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, display: Display, trackers: Trackers, began: TimeUsage
    ) -> None:
        self.folder, self.config, self.display, self.trackers = folder, config, display, trackers
        self._began = began
        self.policies = tuple(config.policies)
        self.report = RunReport(name=config.name, seed=config.seed, endpoint=endpoint_name(config))
        """Totals of all sessions. Its seconds cover the earlier sessions only; see `report_now`."""
        self.selection = ModelSelection(folder, config)
        """The versions of the policies: their scores, and which of them is the best."""
        self._alert_detector = AlertDetector((), self.policies, config.off_policy)
        self._store_sync: StoreSync | None = None
        self._artifact_sync: ArtifactSync | None = None
        self._step_began = time.monotonic()

    # --- Begin and end of a session

    def start(self) -> None:
        """Begin a run without a checkpoint; removes what an earlier session wrote."""
        self.folder.rewind_metrics(-1)
        self.selection.begin()

    def resume(
        self, step: int, checkpoint: Path, progress: Mapping[str, Any], *, keep_evaluations: bool = False
    ) -> bool:
        """Continue from `progress`, which `checkpoint` of `step` holds; removes what was written after that step.

        An evaluation of the last step is removed if it is incomplete, because it will be repeated, except with
        `keep_evaluations`. Returns whether the run was stopped early at `step`, and remains stopped.
        """
        self.report = msgspec.convert(progress["report"], RunReport)
        is_stopped = self.selection.restore(step, checkpoint, progress)
        if not is_stopped:
            self.report.stopped_early = None
        is_last = is_stopped or step >= self.config.steps
        keep_evaluations = keep_evaluations or not is_last or self.selection.is_scored(step)
        self.folder.rewind_metrics(step, evaluations=keep_evaluations)
        lines = [line for line in self.folder.metrics() if not line.keys() & {"held_out", "alert"}]
        self._alert_detector = AlertDetector(lines, self.policies, self.config.off_policy)
        if is_last and not is_stopped:
            self.display.show(f"all {step} steps have been taken; give --steps above {step} to go on")
        else:
            self.display.show(f"continuing after step {step} of {step if is_stopped else self.config.steps}")
        return is_stopped

    def progress(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of `step` must hold for `resume`."""
        return {"report": msgspec.to_builtins(self.report_now()), **self.selection.progress(step)}

    async def follow(self, store: LightningStore, step: int) -> None:
        """Copy the folder into `store` from now on; `step` is that from which the session continues."""
        run_id = self.folder.run_id(self.config.name)
        if (url := url_of_run(self.config.artifacts, run_id)) is not None:
            self._artifact_sync = ArtifactSync(Artifacts(url), self.folder, run_id)
        self._store_sync = StoreSync(store, self.folder, self.config)
        await self._store_sync.begin(step)
        if self._artifact_sync is not None:
            await self._artifact_sync.catch_up()

    async def catch_up(self) -> None:
        """Copy what is new in the folder into the store and to the artifacts; does nothing before `follow`."""
        if self._store_sync is not None:
            await self._store_sync.catch_up()
        if self._artifact_sync is not None:
            await self._artifact_sync.catch_up()

    @asynccontextmanager
    async def recorded(self) -> AsyncGenerator[None]:
        """Context manager: records in the store how the session ended."""
        try:
            yield
        except BaseException as error:
            if self._store_sync is not None:
                await self._store_sync.end_badly(status_after(error))
            if self._artifact_sync is not None:
                await self._artifact_sync.end_badly()
            raise
        if self._store_sync is not None:
            await self._store_sync.end()

    async def end_artifacts(self) -> None:
        """Return when the artifacts have the finished folder; raises RunError if they could not be written."""
        if self._artifact_sync is not None:
            await self._artifact_sync.end()

    def keep_for_good(self, step: int) -> KeptVersion:
        """Choose the version that a run keeps that ended with `step`, record it in the report, and return it."""
        self.report.kept = self.selection.kept(step)
        return self.report.kept

    def report_now(self) -> RunReport:
        """Return the report with the seconds of this session added to those of the earlier ones."""
        used = TimeUsage.now().since(self._began)
        return msgspec.structs.replace(
            self.report,
            seconds=self.report.seconds + used.seconds,
            cpu_seconds=self.report.cpu_seconds + used.cpu_seconds,
        )

    # --- Results

    def report_held_out(
        self,
        step: int,
        name: str,
        label: str,
        found: Evaluation,
        *,
        sampled: bool = False,
        sides: Mapping[str, Evaluation] | None = None,
    ) -> None:
        """Record what version `step` earned on the held-out set `name`, and what the policy of each side earned."""
        sides = sides or {}
        how, note = ("sampled", " (sampled, temperature 1)") if sampled else ("success", "")
        when = f"after step {step}" if label == "during" else label
        each = {side: own.success for side, own in sides.items()}
        scores = {f"{side} ": own for side, own in sides.items()} or {"": found}
        means = ", ".join(f"{side}{reward_text(own.success, is_share=own.is_share)}" for side, own in scores.items())
        parts = "".join(f", {dimension} {mean:.3f}" for dimension, mean in found.dimensions.items())
        self.display.show(f"held out, {when}: {means} on {name}{note}{parts}")
        line: dict[str, Any] = {"step": step, "held_out": name, how: found.success}
        if found.dimensions:
            line["dimensions"] = found.dimensions
        self.folder.append_metrics({**line, "sides": each} if each else line)
        tracked = {f"{side}/held_out/{name}/{how}": own for side, own in each.items()}
        named = {f"held_out/{name}/{how}/{dimension}": mean for dimension, mean in found.dimensions.items()}
        self.trackers.log(step, {f"held_out/{name}/{how}": found.success, **named, **tracked})

    def count(self, collected: Collected) -> None:
        """Count rollouts in the report."""
        report = self.report
        report.rollouts += collected.rollouts
        report.failed_rollouts += collected.failed
        report.empty_rollouts += collected.empty
        report.unrewarded_rollouts += collected.unrewarded
        report.tokens_generated += collected.tokens
        report.note_failures(collected.failures.most_common())
        self.count_excluded(collected.excluded)

    def evaluation(self, name: str, collected: Collected, tasks: int) -> Evaluation:
        """Return what the rollouts of the held-out set `name`, which has `tasks` tasks, earned."""
        self.report.held_out.setdefault(name, HeldOutResult(tasks=tasks))
        success = None if math.isnan(collected.success) else collected.success
        return Evaluation(success=success, rewards=collected.rewards, dimensions=collected.dimensions)

    def account(self, step: int, accounts: Sequence[Account]) -> None:
        """Write what became of a batch's rollouts and calls into the folder, and count it in the report."""
        self.folder.append_learned(step, accounts)
        for account in accounts:
            self.report.rollouts_trained += len(account.trained)
            _add(self.report.rollouts_left_out, {reason: len(ids) for reason, ids in account.rollouts.items()})
            own = {reason: len(ids) for reason, ids in account.calls.items() if reason in FOUND_WHILE_LEARNING}
            self.count_excluded(own)

    def count_excluded(self, reasons: Mapping[str, int]) -> None:
        """Count calls that were left out of training."""
        _add(self.report.excluded_calls, reasons)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out of a step."""
        _add(self.report.dropped_groups, reasons)

    def log(self, step: int, metrics: Mapping[str, Any], pace: Mapping[str, float]) -> None:
        """Write the metrics line of a step, send it to the trackers, and update the display."""
        self.report.steps = step
        self.report.tokens_trained += int(metrics.get("tokens_trained", 0))
        self.report.transitions += int(metrics.get("transitions_trained", 0))
        self._count_by_policy(metrics)
        line = {"step": step, **metrics, **pace, "seconds": time.monotonic() - self._step_began}
        self._step_began = time.monotonic()
        self.folder.append_metrics(line)
        self.selection.note(line)
        self.trackers.log(step, line | self._alerts(step, line))
        notes: Mapping[str, str] = metrics.get("notes", {})
        self.trackers.log_texts(step, {name: text for name, text in notes.items() if name.startswith(PROMPT_NOTE)})
        self.display.step(step, {name: value for name, value in line.items() if name != "notes"})

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Count time under `phase`."""
        _add(self.report.seconds_by_phase, {phase: seconds})

    def begin_step(self) -> None:
        """Count the seconds of a step from now on."""
        self._step_began = time.monotonic()

    def _count_by_policy(self, metrics: Mapping[str, Any]) -> None:
        for name in self.policies if len(self.policies) > 1 else ():
            own = self.report.policies.setdefault(name, PolicyTotals())
            trained = int(metrics.get(f"{name}/transitions_trained", 0))
            own.steps += bool(trained)
            own.transitions += trained
            own.tokens += int(metrics.get(f"{name}/tokens_trained", 0))

    def _alerts(self, step: int, line: Mapping[str, Any]) -> dict[str, float]:
        """Report the alerts that begin with this step.

        Returns 1.0 or 0.0 for each alert raised so far, by whether it is active.
        """
        begun = self._alert_detector.add(line)
        for alert in self.report.alerts:
            if alert.until is None and alert.name not in self._alert_detector.active:
                alert.until = step
        for name, message in begun.items():
            self.report.alerts.append(RaisedAlert(name=name, since=step, message=message))
            self.folder.append_metrics({"step": step, "alert": name, "message": message})
            self.display.show(f"alert, step {step}: {message}")
        return {f"alert/{alert.name}": float(alert.name in self._alert_detector.active) for alert in self.report.alerts}

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Context manager: counts the block's time under `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(name, time.monotonic() - began)


N = TypeVar("N", int, float)


def _add(counts: dict[str, N], more: Mapping[str, N] | Counter[str]) -> None:
    for reason, count in more.items():
        counts[reason] = counts.get(reason, type(count)()) + count  # pyright: ignore[reportArgumentType]


def pace(seconds: float, tokens: int, *, engine_idle: float, trainer_idle: float | None = None) -> dict[str, float]:
    """Return the metrics of a step's rollouts, which took `seconds` and generated `tokens`; empty without rollouts.

    `trainer_idle` is None if the trainer's waiting is not measured.
    """
    if not seconds:
        return {}
    return {
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "seconds_rollouts": seconds,
        **({} if trainer_idle is None else {"seconds_trainer_idle": trainer_idle}),
        "seconds_engine_idle": engine_idle,
    }


def held_out_curve(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return (step, success) points of the first held-out set, with the agent's own sampling.

    `metrics` are the lines of `metrics.jsonl`.
    """
    lines = [line for line in metrics if "success" in line]
    return [(line["step"], line["success"]) for line in lines if line["held_out"] == lines[0]["held_out"]]
