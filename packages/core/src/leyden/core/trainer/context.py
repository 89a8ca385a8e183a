"""`RunContext`: the verbs of `algorithm.base.Context` over a real store, gateway, engine and run folder."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.base import Context
from leyden.core.algorithm.loops import Pace
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import TrainingError
from leyden.core.trainer.batches import Batches, make_batches
from leyden.core.trainer.collect import Collected, Collector
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.display import Display
from leyden.core.trainer.folder import RunFolder
from leyden.core.trainer.report import HeldOutResult, RunReport, percent
from leyden.core.trainer.serving import Serving
from leyden.core.trainer.tracker import Tracker
from leyden.core.trainer.usage import Usage

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update import Updater

P = ParamSpec("P")
R = TypeVar("R")


class RunContext(Context):
    """One sitting of one run."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        serving: Serving,
        collector: Collector,
        display: Display,
        *,
        tracker: Tracker | None,
        began: Usage,
    ) -> None:
        self.folder, self.config, self.serving, self.collector = folder, config, serving, collector
        self.display, self.tracker = display, tracker
        self._began = began
        self.steps, self.seed = config.steps, config.seed
        self.step = 0
        self.batches: Batches = make_batches(Pace(), collector, self, {})
        self.report = RunReport(name=config.name, seed=config.seed)
        """What all sittings came to; its seconds are those of the earlier ones, see `report_now`."""
        self._model: PolicyModel | None = None
        self._position: dict[str, Any] = {}
        """Where the last checkpoint left the run's tasks."""
        self._step_began = time.monotonic()
        self._rollout_seconds = 0.0
        self._rollout_tokens = 0
        self._waited = self._engine_idle = 0.0

    # --- The policy

    def load_policy(self) -> "PolicyModel":
        """The policy the run begins with, ready to train."""
        from leyden.core.policy.model import PolicyModel

        with self.phase("load"):
            self._model = PolicyModel.load(self.config.policy, device=self.config.device)
        return self._model

    def trained_policy(self) -> "PolicyModel":
        """The policy as it is now. Raises TrainingError when the algorithm never loaded it."""
        if self._model is None:
            raise TrainingError("the algorithm ended without having loaded the policy")
        return self._model

    async def restore(self, updater: "Updater") -> None:
        """Go on from the last checkpoint, if there is one, and serve its weights."""
        from leyden.core.policy.checkpoint import latest_checkpoint, load_checkpoint

        latest = latest_checkpoint(self.folder.checkpoints)
        if latest is None:
            self.folder.rewind_metrics(-1)
        else:
            progress = load_checkpoint(latest, updater)
            self.step, self._position = progress["step"], progress["position"]
            self.batches = make_batches(Pace(), self.collector, self, self._position)
            self.report = msgspec.convert(progress["report"], RunReport)
            self.folder.rewind_metrics(self.step, evaluations=self.step < self.steps)
            self.display.say(f"going on after step {self.step} of {self.steps}")
        await self.serving.serve(updater.model, self.step)
        self.display.start(self.steps, self.step)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread, its time counted under `phase`."""
        self.display.phase(phase)
        with self.phase(phase):
            return await asyncio.to_thread(function, *args, **kwargs)

    async def publish(self, model: "PolicyModel") -> float:
        """Serve the model's weights as the next version and compare served with trained log-probabilities."""
        await self._wait(self.batches.settle)
        with self.phase("publish"):
            gap = await self.serving.serve(model, self.step + 1)
        self.step += 1
        self.batches.step_taken()
        return gap

    async def checkpoint(self, updater: "Updater") -> None:
        """Keep model, optimizer, random states and position, every `checkpoint_every` steps and after the last."""
        if self.step % self.config.checkpoint_every and self.step != self.steps:
            return
        from leyden.core.policy.checkpoint import save_checkpoint

        with self.phase("checkpoint"):
            await asyncio.to_thread(
                save_checkpoint,
                self.folder.checkpoints,
                self.step,
                updater,
                self._progress(),
                self.config.keep_checkpoints,
            )

    def _progress(self) -> dict[str, Any]:
        report = msgspec.to_builtins(self.report_now())
        return {"step": self.step, "position": self.batches.position(), "report": report}

    # --- Rollouts

    @asynccontextmanager
    async def collecting(self, pace: Pace) -> AsyncGenerator[None]:
        """Collect at `pace` inside the block, from where the last checkpoint left the run's tasks."""
        self.batches = make_batches(pace, self.collector, self, self._position)
        try:
            yield
        finally:
            await self.batches.close()

    async def collect(self) -> list[TrajectoryGroup]:
        """Run the agent on the next tasks; groups of a batch that an earlier sitting finished are not run again."""
        self._step_began, self._waited = time.monotonic(), 0.0
        self._engine_idle = self.collector.idle.seconds
        collected = await self._wait(self.batches.next)
        self._rollout_seconds, self._rollout_tokens = collected.seconds, collected.tokens
        self._count(collected)
        return collected.groups

    async def _wait(self, function: Callable[[], Awaitable[R]]) -> R:
        """Wait for rollouts, by way of `function`: learning stands still."""
        began = time.monotonic()
        with self.phase("rollouts"):
            result = await function()
        self._waited += time.monotonic() - began
        return result

    async def evaluate(self, label: str) -> None:
        """Run every held-out task once with the agent's own sampling, and once with the training sampling.

        One version answers all of it: whoever publishes waits for this. No training rollout is begun meanwhile.
        """
        with self.batches.paused():
            await self._evaluate(label)

    async def _evaluate(self, label: str) -> None:
        for number, held_out in enumerate(self.config.held_out):
            result = self.report.held_out.get(held_out.name)
            for sampled in (False, True) if self.config.evaluate_sampled else (False,):
                with self.phase("evaluate"):
                    collected = await self.collector.evaluate(held_out.name, label, sampled=sampled, version=self.step)
                self._count(collected)
                result = result or HeldOutResult(tasks=len(collected.groups))
                self._note(result, label, sampled, collected.success, held_out.name, headline=number == 0)
            if result is not None:
                self.report.held_out[held_out.name] = result

    def _note(
        self, result: HeldOutResult, label: str, sampled: bool, success: float, name: str, *, headline: bool
    ) -> None:
        how = "sampled" if sampled else "success"
        said = " (sampled, temperature 1)" if sampled else ""
        self.display.say(f"held out, {label}: {percent(success)} on {name}{said}")
        if label in ("before", "after"):
            setattr(result, f"sampled_{label}" if sampled else label, success)
            if headline:
                setattr(self.report, f"{how}_{label}", success)
        self.folder.append_metrics({"step": self.step, "held_out": name, how: success})
        if self.tracker is not None:
            self.tracker.log(self.step, {f"held_out/{name}/{how}": success})

    def _count(self, collected: Collected) -> None:
        report = self.report
        report.rollouts += collected.rollouts
        report.failed_rollouts += collected.failed
        report.empty_rollouts += collected.empty
        report.unrewarded_rollouts += collected.unrewarded
        report.tokens_generated += collected.tokens
        _add(report.excluded_calls, collected.excluded)

    # --- Numbers

    def report_now(self) -> RunReport:
        """The report with this sitting's seconds added to those of the earlier ones."""
        used = Usage.now().since(self._began)
        return msgspec.structs.replace(
            self.report,
            seconds=self.report.seconds + used.seconds,
            cpu_seconds=self.report.cpu_seconds + used.cpu_seconds,
        )

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out of a step."""
        _add(self.report.dropped_groups, reasons)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Write the step's line, tell the tracker, move the bar."""
        self.report.steps = self.step
        self.report.tokens_trained += int(metrics["tokens_trained"])
        self.report.transitions += int(metrics["transitions_trained"])
        line = {
            "step": self.step,
            **metrics,
            "tokens_per_second": self._rollout_tokens / max(self._rollout_seconds, 1e-9),
            "seconds_rollouts": self._rollout_seconds,
            "seconds_trainer_idle": self._waited,
            "seconds_engine_idle": self.collector.idle.seconds - self._engine_idle,
            "seconds": time.monotonic() - self._step_began,
        }
        self.folder.append_metrics(line)
        if self.tracker is not None:
            self.tracker.log(self.step, line)
        self.display.step(self.step, line)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the block's time under `name`."""
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
    """(step, success) of the first held-out set with the agent's own sampling, from the lines of `metrics.jsonl`."""
    lines = [line for line in metrics if "success" in line]
    return [(line["step"], line["success"]) for line in lines if line["held_out"] == lines[0]["held_out"]]
