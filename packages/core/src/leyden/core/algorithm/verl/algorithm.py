"""`VERL`: trains the run's agents with VERL's unchanged trainer on a Ray cluster.

VERL requests rollouts of its tasks from the run, and serves the policy to the run's gateway; see `inside_verl`.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.algorithm.external_loop import ExternalLoopAlgorithm, ExternalLoopContext
from leyden.core.algorithm.verl.driver.agent_lightning_section import without_section
from leyden.core.algorithm.verl.driver.datasets import write_held_out, write_training
from leyden.core.algorithm.verl.driver.derived_settings import (
    TrainerFiles,
    batch_size,
    context_length,
    given_value,
    own_settings,
    planned_steps,
    trainer_mode,
    usual_settings,
    with_absolute_policy,
)
from leyden.core.algorithm.verl.driver.launch import METRICS, MODULES, TOKEN, URL, Launch
from leyden.core.algorithm.verl.driver.owned_settings import CHANGEABLE, POLICY, REPLACED
from leyden.core.algorithm.verl.driver.process import StepNumbers, TrainerProcess, trainer_process
from leyden.core.algorithm.verl.driver.run_server import RolloutServer
from leyden.core.data.scheme import nested
from leyden.core.errors import EngineError, UsageError

log = logging.getLogger(__name__)

LOG = "verl.log"
"""File in the loop's folder with the output of VERL's processes."""
POLL_SECONDS = 0.5
"""Interval in seconds at which the metrics of VERL's steps are read."""
END_SECONDS = 5.0
"""Seconds in which VERL may end and report the reason, after its replicas were lost."""
METRIC_NAMES = {
    "loss": "actor/loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "served_trained_gap": "training/rollout_probs_diff_max",
}
"""Metrics that every algorithm logs, and VERL's names for them. The gap is one of probabilities."""
OLDEST = "training/off_policy/trajectory_staleness_worst/max"
"""VERL's metric for how many updates the oldest tokens of a step are behind."""
PLUGIN = "leyden.core.algorithm.verl.inside_verl.plugin"
HUGGINGFACE = "actor/huggingface"
"""Folder of whole weights in a checkpoint. VERL's own merger of shards would round them to bfloat16."""
MERGED, LORA = "actor/merged", "actor/lora_train_meta.json"
"""With LoRA: folder of the weights with the adapters added, and VERL's file with rank and alpha of the adapters."""
LATEST = "latest_checkpointed_iteration.txt"
"""File in which VERL records its last complete checkpoint."""


class VERLConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of VERL, and how to start it."""

    config: dict[str, Any] = {}
    """VERL's own configuration dictionary; only values that differ from its defaults are needed."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the same configuration, as on VERL's command line."""
    ray_address: str | None = None
    """The cluster to join, as `ray.init` takes it; None starts one on this machine and stops it with the run."""
    environment: Mapping[str, str | bool | int | float] = {}
    """Environment variables of all VERL processes. Values that are not text are written as JSON."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment with all values as text."""
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in self.environment.items()
        }


class VERL(ExternalLoopAlgorithm):
    """VERL's V1 trainer. Takes VERL's plain dictionary, or a `VERLConfig`, which also has the options to start it."""

    name = "verl"
    Config = VERLConfig
    config: VERLConfig

    def __init__(self, config: Mapping[str, Any] | VERLConfig | None = None) -> None:
        super().__init__(config if isinstance(config, VERLConfig) else VERLConfig(config=dict(config or {})))
        self._nested_config()  # refuses what the section of Agent Lightning cannot say here

    def check_change(self, key: str) -> None:
        """Raise UsageError unless a resumed run may change this key.

        Allowed are the keys that define how VERL is started, and those in `CHANGEABLE` that no override sets.
        """
        if key == "ray_address" or key.startswith("environment."):
            return
        path = key.removeprefix("config.")
        if path == key or path not in CHANGEABLE:
            raise UsageError(
                f"--set {key} cannot change on --resume; these can: ray_address, environment.NAME and, as "
                "config.KEY, VERL's limits and memory settings, which docs/verl-runs.md lists"
            )
        if given_value({}, self.config.overrides, path) is not None:
            raise UsageError(
                f"--set {key} has no effect on --resume: the run's overrides set {path} and take precedence"
            )

    @property
    def named_policy(self) -> str | None:
        """VERL's `actor_rollout_ref.model.path`."""
        return given_value(self._nested_config(), self.config.overrides, POLICY)

    @property
    def context_length(self) -> int:
        """The most tokens of a call that VERL serves, prompt and response together."""
        return context_length(self._nested_config(), self.config.overrides)

    async def run_loop(self, context: ExternalLoopContext) -> None:
        """Run VERL's training from the last checkpoint on, and take over the weights that it ends with."""
        config, overrides = self._nested_config(), self.config.overrides
        if unread := [path for path in REPLACED if given_value(config, (), path) is not None]:
            log.warning("VERL ignores %s: it trains on the run's own tasks", " and ".join(unread))
        context.steps = planned_steps(config, overrides, len(context.tasks), context.plan)
        step = max((step for step in context.noted_steps if _is_kept(context, step)), default=0)
        await context.go_on_after(step, repeats=trainer_mode(config, overrides) == "sync")
        if step < context.steps:
            await self._train(context, step)
        await self._take_over(context)

    def _nested_config(self) -> dict[str, Any]:
        """Return the given VERL dictionary, with dotted keys turned into nested mappings."""
        return without_section(nested(self.config.config))

    async def _train(self, context: ExternalLoopContext, step: int) -> None:
        server = RolloutServer(context)
        launch = self._launch(context, server, step)
        numbers = StepNumbers(Path(launch.environment[METRICS]))
        try:
            async with trainer_process(launch, context.home / LOG) as process:
                await _follow(context, process, server.failure, numbers)
        except EngineError as error:  # VERL's log may have the reason why its replicas are gone
            raise EngineError(f"{error}; VERL's output is in {context.home / LOG}") from error
        finally:
            await server.close()
        if context.step < context.steps:
            log.warning("VERL ended after step %d of %d", context.step, context.steps)
            context.steps = context.step

    async def _take_over(self, context: ExternalLoopContext) -> None:
        """Take over the weights of the best and the last version as the run's own."""
        versions = [version for version in context.versions_to_keep if version]
        checkpoints = [_checkpoint_folder(context, version) for version in versions]
        folders = [await asyncio.to_thread(_whole_weights, checkpoint) for checkpoint in checkpoints]
        await context.adopt(dict(zip(versions, folders, strict=True)))

    def _launch(self, context: ExternalLoopContext, server: RolloutServer, step: int) -> Launch:
        """Write the files that VERL reads, and return how it is started. Paths are absolute, for other processes."""
        home, overrides = context.home.absolute(), self.config.overrides
        config = usual_settings(self._nested_config(), overrides, context.steps, context.plan)
        plan = with_absolute_policy(config, overrides, context.plan)
        held_out = home / "held_out.parquet" if context.held_out else None
        checkpoints = context.checkpoints.absolute()
        files = TrainerFiles(training=home / "train.parquet", held_out=held_out, checkpoints=checkpoints)
        write_training(files.training, context.tasks, batch_size(config, overrides, plan))
        if held_out is not None:
            write_held_out(held_out, context.held_out)
        metrics = home / "steps.jsonl"
        metrics.unlink(missing_ok=True)
        endpoint = context.open(server.app)
        settings = own_settings(config, plan, files, step)
        return Launch(
            config=config,
            overrides=overrides,
            settings=settings,
            ray_address=self.config.ray_address,
            environment={**self._environment(), URL: endpoint.url, TOKEN: endpoint.token, METRICS: str(metrics)},
        )

    def _environment(self) -> dict[str, str]:
        """Return further environment variables for VERL's processes; they add Leyden's plug-in to VERL's modules."""
        variables = self.config.variables
        modules = variables.get(MODULES, os.environ.get(MODULES, ""))
        return {**variables, MODULES: ",".join(filter(None, [modules, PLUGIN]))}


def latest_step(checkpoints: Path) -> int:
    """Return the step of VERL's last complete checkpoint; 0 without one."""
    latest = checkpoints / LATEST
    return int(latest.read_text()) if latest.exists() else 0


async def _follow(
    context: ExternalLoopContext, process: TrainerProcess, failure: "asyncio.Future[None]", numbers: StepNumbers
) -> None:
    """Report each step of VERL to the run until VERL ends; raises the error of VERL or of a rollout."""
    began, ended = context.step, asyncio.ensure_future(process.ended())
    try:
        while True:
            await asyncio.wait({ended, failure}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            has_ended = ended.done()
            for step, found in numbers.new():
                if step > began:
                    kept = latest_step(context.checkpoints) >= step and _is_kept(context, step)
                    await context.step_taken(step, {**found, **_renamed_metrics(found)}, kept=kept)
                    _prune(context)
            if failure.done():
                await _raise_verl_error(failure, ended)
                failure.result()
            if has_ended:
                ended.result()
                return
    finally:
        ended.cancel()


async def _raise_verl_error(failure: "asyncio.Future[None]", ended: "asyncio.Future[None]") -> None:
    """Raise VERL's own error if VERL ends soon, because it may explain why the replicas are lost."""
    if isinstance(failure.exception(), EngineError):
        await asyncio.wait({ended}, timeout=END_SECONDS)
        if ended.done():
            ended.result()


def _renamed_metrics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: numbers[verl_name] for name, verl_name in METRIC_NAMES.items() if verl_name in numbers}
    if numbers.get(OLDEST):
        # Other weights generated some of these tokens, so the gap does not measure a difference in serving.
        found.pop("served_trained_gap", None)
    return found


def _is_kept(context: ExternalLoopContext, step: int) -> bool:
    """Return whether VERL can resume after `step`, whose checkpoint was complete at some time."""
    return (_checkpoint_folder(context, step) / "data.pt").exists()


def _checkpoint_folder(context: ExternalLoopContext, step: int) -> Path:
    """Return the folder of VERL's checkpoint after a step."""
    return context.checkpoints / f"global_step_{step}"


def _whole_weights(checkpoint: Path) -> Path:
    """Return the folder of the weights of a checkpoint. With LoRA, VERL keeps the adapters apart; they are added."""
    from leyden.core.policy.checkpoints.adapted_folder import merge_folder

    if not (checkpoint / LORA).exists():
        return checkpoint / HUGGINGFACE
    lora = msgspec.json.decode((checkpoint / LORA).read_bytes())
    return merge_folder(checkpoint / HUGGINGFACE, checkpoint / MERGED, lora["lora_alpha"] / lora["r"])


def _prune(context: ExternalLoopContext) -> None:
    """Remove the checkpoints that are needed neither to resume nor for the best version."""
    steps = sorted(int(path.name.rpartition("_")[2]) for path in context.checkpoints.glob("global_step_*"))
    needed = {*steps[-max(1, context.plan.keep_checkpoints) :], *context.versions_to_keep}
    for step in steps:
        if step not in needed:
            with contextlib.suppress(OSError):
                shutil.rmtree(_checkpoint_folder(context, step))
