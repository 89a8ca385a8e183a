"""`VERL`: the run's agents, trained by VERL's own trainer on a Ray cluster. Owns no loop: VERL's is not changed.

VERL asks the run for rollouts of its tasks and serves the policy to the run's gateway; see `inside_verl`.
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

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.external_loop import OutsideContext
from leyden.core.algorithm.verl.driver.datasets import write_held_out, write_training
from leyden.core.algorithm.verl.driver.launch import METRICS, MODULES, TOKEN, URL, Launch
from leyden.core.algorithm.verl.driver.owned_settings import CHANGEABLE, POLICY, REPLACED
from leyden.core.algorithm.verl.driver.process import StepNumbers, TrainerProcess, trainer_process
from leyden.core.algorithm.verl.driver.run_server import Collecting
from leyden.core.algorithm.verl.driver.settings import (
    Files,
    asked,
    batch_size,
    context_length,
    own_settings,
    planned_steps,
    trainer_mode,
    usual_settings,
)
from leyden.core.data.scheme import nested
from leyden.core.errors import EngineError, UsageError

log = logging.getLogger(__name__)

LOG = "verl.log"
"""What VERL's processes say, in the loop's folder."""
LOOK_SECONDS = 0.5
"""How often the numbers of VERL's steps are looked for."""
LAST_WORDS_SECONDS = 5.0
"""How long VERL, whose replicas are lost, may take to end and say why."""
OURS = {
    "loss": "actor/loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "served_trained_gap": "training/rollout_probs_diff_max",
}
"""Numbers of a step that every algorithm logs, and VERL's names of them. The gap is one of probabilities."""
OLDEST = "training/off_policy/trajectory_staleness_worst/max"
"""VERL's name of how many updates the oldest tokens of a step are behind."""
PLUGIN = "leyden.core.algorithm.verl.inside_verl.plugin"
HUGGINGFACE = "actor/huggingface"
"""The weights in a checkpoint, whole; VERL's own merger of shards would round them to bfloat16."""
LATEST = "latest_checkpointed_iteration.txt"
"""Where VERL says which checkpoint is its last whole one."""


class VERLConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How VERL trains."""

    config: dict[str, Any] = {}
    """VERL's own dictionary, as far as it differs from its defaults."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the same, as on VERL's command line."""
    ray_address: str | None = None
    """The cluster to join, as `ray.init` takes it; None starts one on this machine, and ends it with the run."""
    environment: Mapping[str, str | bool | int | float] = {}
    """Variables of every process of VERL. What is no text, as a command line reads `1`, is written as JSON."""

    @property
    def variables(self) -> dict[str, str]:
        """The same as a process gets them."""
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in self.environment.items()
        }


class VERL(Algorithm):
    """VERL's V1 trainer. Takes its plain dictionary, or a `VERLConfig` with how to start it."""

    name = "verl"
    Config = VERLConfig
    config: VERLConfig

    def __init__(self, config: Mapping[str, Any] | VERLConfig | None = None) -> None:
        super().__init__(config if isinstance(config, VERLConfig) else VERLConfig(config=dict(config or {})))

    def check_change(self, key: str) -> None:
        """Raise UsageError, unless `key` says how VERL is started, or is one of `CHANGEABLE` that no override says."""
        if key == "ray_address" or key.startswith("environment."):
            return
        path = key.removeprefix("config.")
        if path == key or path not in CHANGEABLE:
            raise UsageError(
                f"--set {key} cannot change on --resume: only ray_address, environment.NAME and, as config.KEY, the "
                "limits and memory settings of VERL's that docs/verl-runs.md lists"
            )
        if asked({}, self.config.overrides, path) is not None:
            raise UsageError(f"--set {key} has no effect on --resume: the run's overrides say {path}, and win over it")

    @property
    def named_policy(self) -> str | None:
        """VERL's `actor_rollout_ref.model.path`."""
        return asked(self._given(), self.config.overrides, POLICY)

    @property
    def serves_itself(self) -> bool:
        """VERL serves the policy by replicas of its own."""
        return True

    @property
    def context_length(self) -> int:
        """The most tokens of a call that VERL serves, prompt and answer together."""
        return context_length(self._given(), self.config.overrides)

    async def run(self, context: Context) -> None:
        """Let VERL train, from the last checkpoint on, and take over the weights that it ends with."""
        if not isinstance(context, OutsideContext):
            raise UsageError(f"{type(context).__name__} cannot run VERL, whose loop runs in processes of its own")
        given, overrides = self._given(), self.config.overrides
        if unread := [path for path in REPLACED if asked(given, (), path) is not None]:
            log.warning("VERL is not given %s: it has the tasks that the run was given", " and ".join(unread))
        context.steps = planned_steps(given, overrides, len(context.tasks), context.plan)
        step = max((step for step in context.noted_steps if _is_kept(context, step)), default=0)
        await context.go_on_after(step, repeats=trainer_mode(given, overrides) == "sync")
        if step < context.steps:
            await self._train(context, step)
        await self._take_over(context)

    def _given(self) -> dict[str, Any]:
        """VERL's dictionary as it was given, keys with dots as mappings in mappings."""
        return nested(self.config.config)

    async def _train(self, context: OutsideContext, step: int) -> None:
        collecting = Collecting(context)
        launch = self._launch(context, collecting, step)
        numbers = StepNumbers(Path(launch.environment[METRICS]))
        try:
            async with trainer_process(launch, context.home / LOG) as process:
                await _follow(context, process, collecting.failure, numbers)
        except EngineError as error:  # VERL may know why its replicas are gone
            raise EngineError(f"{error}; all that VERL said is in {context.home / LOG}") from error
        finally:
            await collecting.close()
        if context.step < context.steps:
            log.warning("VERL ended after step %d, of %d planned", context.step, context.steps)
            context.steps = context.step

    async def _take_over(self, context: OutsideContext) -> None:
        """Take the weights of the best and of the last version as the run's own."""
        folders = {version: _kept_in(context, version) / HUGGINGFACE for version in context.versions_to_keep if version}
        await context.adopt(folders)

    def _launch(self, context: OutsideContext, collecting: Collecting, step: int) -> Launch:
        """Write what VERL reads, and say how it is started."""
        plan, home, overrides = context.plan, context.home, self.config.overrides
        config = usual_settings(self._given(), overrides, context.steps, plan)
        held_out = home / "held_out.parquet" if context.held_out else None
        files = Files(training=home / "train.parquet", held_out=held_out, checkpoints=context.checkpoints)
        write_training(files.training, context.tasks, batch_size(config, overrides, plan))
        if held_out is not None:
            write_held_out(held_out, context.held_out)
        metrics = home / "steps.jsonl"
        metrics.unlink(missing_ok=True)
        door = context.open(collecting.app)
        settings = own_settings(config, plan, files, step)
        return Launch(
            config=config,
            overrides=overrides,
            settings=settings,
            ray_address=self.config.ray_address,
            environment={**self._environment(), URL: door.url, TOKEN: door.token, METRICS: str(metrics)},
        )

    def _environment(self) -> dict[str, str]:
        """What VERL's processes get besides; a plug-in is among its modules."""
        given = self.config.variables
        modules = given.get(MODULES, os.environ.get(MODULES, ""))
        return {**given, MODULES: ",".join(filter(None, [modules, PLUGIN]))}


def latest_step(checkpoints: Path) -> int:
    """The step of VERL's last whole checkpoint; 0 where there is none."""
    latest = checkpoints / LATEST
    return int(latest.read_text()) if latest.exists() else 0


async def _follow(
    context: OutsideContext, process: TrainerProcess, failure: "asyncio.Future[None]", numbers: StepNumbers
) -> None:
    """Tell the run of each step that VERL takes, until it ends; raises what it, or a rollout, fails with."""
    began, ended = context.step, asyncio.ensure_future(process.ended())
    try:
        while True:
            await asyncio.wait({ended, failure}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            over = ended.done()
            for step, found in numbers.new():
                if step > began:
                    kept = latest_step(context.checkpoints) >= step and _is_kept(context, step)
                    await context.step_taken(step, {**found, **_by_our_names(found)}, kept=kept)
                    _prune(context)
            if failure.done():
                await _prefer_its_end(failure, ended)
                failure.result()
            if over:
                ended.result()
                return
    finally:
        ended.cancel()


async def _prefer_its_end(failure: "asyncio.Future[None]", ended: "asyncio.Future[None]") -> None:
    """Raise what VERL has ended with, where it may be the reason why its replicas are lost: they end with it."""
    if isinstance(failure.exception(), EngineError):
        await asyncio.wait({ended}, timeout=LAST_WORDS_SECONDS)
        if ended.done():
            ended.result()


def _by_our_names(numbers: Mapping[str, Any]) -> dict[str, Any]:
    found = {ours: numbers[theirs] for ours, theirs in OURS.items() if theirs in numbers}
    if numbers.get(OLDEST):
        # Other weights drew some of it than those that it is compared with: the gap says nothing of serving.
        found.pop("served_trained_gap", None)
    return found


def _is_kept(context: OutsideContext, step: int) -> bool:
    """Whether VERL can go on after a step whose checkpoint was whole once."""
    return (_kept_in(context, step) / "data.pt").exists()


def _kept_in(context: OutsideContext, step: int) -> Path:
    """Where VERL keeps what it goes on from after a step."""
    return context.checkpoints / f"global_step_{step}"


def _prune(context: OutsideContext) -> None:
    """Remove the checkpoints that neither going on nor the best version needs."""
    steps = sorted(int(path.name.rpartition("_")[2]) for path in context.checkpoints.glob("global_step_*"))
    needed = {*steps[-max(1, context.plan.keep_checkpoints) :], *context.versions_to_keep}
    for step in steps:
        if step not in needed:
            with contextlib.suppress(OSError):
                shutil.rmtree(_kept_in(context, step))
