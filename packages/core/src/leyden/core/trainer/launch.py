"""From a `RunConfig` and rows to a finished run: folder, lock, event loop, and what is left behind when it fails."""

import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import AttemptedRollout, Task
from leyden.core.errors import CheckFailed, LeydenError, NothingToLearn, RunError, UsageError
from leyden.core.masking import MASK, mask_own_logs, remember_secret
from leyden.core.policy.device import check_device
from leyden.core.policy.repeatable import repeatable
from leyden.core.store.open import open_store
from leyden.core.trainer.agents.local import AgentPlan, AgentSide, no_agents, remote_agents, worker_agents
from leyden.core.trainer.config import RunConfig, check_in_clear, save_config
from leyden.core.trainer.event_loop import run_loop
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.preflight.rehearsal import ENOUGH_ROLLOUTS, MOST_BATCHES
from leyden.core.trainer.preflight.report import CheckReport
from leyden.core.trainer.run_folder.folder import RunFolder, is_free
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.session import check, train

T = TypeVar("T")
Sit = Callable[[RunFolder, RunConfig], RunReport]
"""Does one sitting of a run in a folder that is locked for it."""
Look = Callable[[RunFolder, RunConfig], CheckReport]
"""Checks a run in such a folder."""
MOST_NAME = 50
"""Letters of a run's name in that of its check, which has a limit of its own."""
TASKS_OF_A_CHECK = 4
"""Of each batch that `check_run` takes, at least; it takes several where the first says too little."""


def begin(
    runs: Path,
    config: RunConfig,
    tasks: list[Task],
    held_out: Mapping[str, list[Task]],
    sit: Sit,
) -> RunReport:
    """Make the run's folder and train.

    When it turns out before the first step that what was given cannot work, the folder is removed again: nothing
    half-written stays behind. Where agents ran, or printed something, it stays, to be looked at with `leyden why`, and
    the next run of the name replaces it. Rollouts that taught nothing stay for good, and the run can go on: what they
    cost is not to be paid twice.
    """
    prepare_masking(config)
    check_needed(config, tasks)
    check_machine(config)
    config = with_sides(config)
    folder = RunFolder.create(runs, config, tasks, dict(held_out))
    try:
        return sit(folder, config)
    except (UsageError, CheckFailed) as error:
        if not isinstance(error, NothingToLearn) and not folder.checkpoints.exists():
            _keep_evidence(folder, error)
        raise


def _keep_evidence(folder: RunFolder, error: Exception) -> None:
    """Keep the folder of a run that ended before it began, with the reason, if it holds anything to look at."""
    if _has_evidence(folder):
        folder.note_failure(error)
    else:
        shutil.rmtree(folder.path, ignore_errors=True)


def _has_evidence(folder: RunFolder) -> bool:
    """Whether an agent printed something, or a rollout was begun."""
    if folder.worker_log.exists() and folder.worker_log.stat().st_size:
        return True
    return folder.store_file.exists() and run_loop(_begun(folder.store_uri)) > 0


async def _begun(store_uri: str) -> int:
    """How many rollouts of a store have an attempt."""
    store = await open_store(store_uri, clock=lambda: 0.0)
    try:
        return sum(isinstance(rollout, AttemptedRollout) for rollout in await store.query_rollouts())
    finally:
        await store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is otherwise than the run began with."""

    steps: int | None = None
    """Planned in all, for one sitting."""
    device: str | None = None
    """What policy and engine live on from here on."""
    ray_address: str | None = None
    """Of the cluster that the runners' actors are on."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the algorithm, keys with dots for parts of an option; those that `Algorithm.check_change` lets through."""


def resume(runs: Path, name: str, sit: Sit, changes: Changes | None = None) -> RunReport:
    """Go on with a run where its last checkpoint left it; raises UsageError for what cannot change.

    What changes is written down, and is the run's from then on, but for the number of steps.
    """
    folder, config = RunFolder.open(runs, name)
    prepare_masking(config)
    if (failure := folder.failure()) is not None:
        first = failure.splitlines()[0]
        raise RunError(
            f"run {name!r} ended before its first step ({first}); begin it again, under the same name or not"
        )
    check_command(name, config)
    changes = changes or Changes()
    different = changed(config, changes)
    check_machine(different)
    if different != config:
        with folder.locked():
            save_config(different, folder.config_file)
    if changes.steps is not None:
        different = msgspec.structs.replace(different, steps=changes.steps)
    return sit(folder, different)


def check_command(name: str, config: RunConfig) -> None:
    """Raise RunError for a run whose command had a secret in it, which was not kept."""
    command = () if config.agent is None or isinstance(config.agent, str) else config.agent
    if masked := [argument for argument in command if MASK in argument]:
        raise RunError(
            f"run {name!r} cannot be resumed: its command held a secret ({masked[0]!r}), and config.yaml keeps none; "
            "begin a new run, and give the command its secret in a variable, by --env NAME"
        )


def changed(config: RunConfig, changes: Changes) -> RunConfig:
    """Return `config` with what `changes` for good; raises UsageError for what cannot change, or cannot work."""
    if changes.device is not None:
        config = msgspec.structs.replace(config, device=changes.device)
    if changes.ray_address is not None:
        runners = msgspec.structs.replace(config.runners, ray_address=changes.ray_address)
        config = msgspec.structs.replace(config, runners=runners)
    if changes.settings:
        algorithm = make_algorithm(config.algorithm, config.algorithm_config)
        for key in changes.settings:
            algorithm.check_change(key)
        settings = {**config.algorithm_config, **changes.settings}
        make_algorithm(config.algorithm, settings)
        config = msgspec.structs.replace(config, algorithm_config=settings)
    return config


def check_run(runs: Path, config: RunConfig, tasks: list[Task], look: Look) -> CheckReport:
    """Prove that a run would learn, on smaller batches than the run's.

    Its folder, called like the run with `-check` behind, is removed. Where the check is not passed, or rollouts failed,
    it stays to be looked at, until the next check of the name.
    """
    prepare_masking(config)
    check_needed(config, tasks)
    check_machine(config)
    if not tasks:
        raise UsageError(f"{config.algorithm} learns from spans: there are no rollouts of its own to check")
    wanted = math.ceil(ENOUGH_ROLLOUTS / MOST_BATCHES / config.group_size)
    fewer = min(config.tasks_per_step, max(TASKS_OF_A_CHECK, wanted))
    smaller: dict[str, Any] = {"tasks_per_step": fewer, "held_out": (), "eval_every": 0, "patience": None}
    config = msgspec.structs.replace(
        with_sides(config), name=_free_name(runs, f"{config.name[:MOST_NAME]}-check"), **smaller
    )
    is_first = not runs.exists()
    folder = RunFolder.create(runs, config, tasks, {})
    try:
        report = look(folder, config)
        if not report.proven or report.result("rollouts").status != "ok":
            _keep_evidence(folder, CheckFailed(report.remarks()))
            kept = str(folder.path) if folder.failure() is not None else None
            report = msgspec.structs.replace(report, kept=kept)
    except LeydenError as error:
        _keep_evidence(folder, error)
        raise
    finally:
        if folder.failure() is None:
            shutil.rmtree(folder.path, ignore_errors=True)
        if is_first:
            _remove_if_empty(runs)
    return report


def _free_name(runs: Path, name: str) -> str:
    """`name`, or with a number behind where another process checks under it."""
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    return next((one for one in names if is_free(runs / one)), name)


def _remove_if_empty(runs: Path) -> None:
    with suppress(OSError):
        runs.rmdir()


def sit_here(display: Display, resources: NamedResources | None = None) -> Sit:
    """Learning, gateway and engine in this process; agents in worker processes, from import strings."""

    def sit(folder: RunFolder, config: RunConfig) -> RunReport:
        with folder.locked(), repeatable(config.deterministic):
            return run_loop(train(folder, config, _agents(folder, config), display, resources))

    return sit


def look_here(display: Display, resources: NamedResources | None = None) -> Look:
    """The same for a check."""

    def look(folder: RunFolder, config: RunConfig) -> CheckReport:
        with folder.locked(), repeatable(config.deterministic):
            return run_loop(check(folder, config, _agents(folder, config), display, resources))

    return look


def prepare_masking(config: RunConfig) -> None:
    """Mask from here on what Leyden logs, and the secrets that this run is given by name."""
    mask_own_logs()
    for name in config.env:
        remember_secret(os.environ.get(name, ""))


def check_needed(config: RunConfig, tasks: list[Task]) -> None:
    """Raise UsageError where the algorithm lacks an agent or tasks, has no use for them, or cannot take the steps.

    What does not learn from rollouts of its own takes an agent and held-out tasks only together, to be evaluated.
    """
    given = {"an agent": config.agent is not None, "tasks": bool(tasks)}
    check_in_clear(config)
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    algorithm.check_steps(config.steps)
    if algorithm.needs_rollouts:
        missing = " and ".join(what for what, there in given.items() if not there)
        if missing:
            raise UsageError(f"{config.algorithm} learns from rollouts of its own, and needs {missing}")
    elif config.held_out and config.agent is None:
        raise UsageError("held-out tasks need an agent to run them")
    elif tasks:
        raise UsageError(f"tasks have no effect: {config.algorithm} learns from spans; held-out tasks evaluate it")
    elif config.agent is not None and not config.held_out:
        raise UsageError(f"an agent has no effect: {config.algorithm} learns from spans, and nothing is held out")


def check_machine(config: RunConfig) -> None:
    """Raise UsageError where this machine lacks the device of the run, unless the algorithm chooses devices itself."""
    if not make_algorithm(config.algorithm, config.algorithm_config).serves_itself:
        check_device(config.device)


def with_sides(config: RunConfig) -> RunConfig:
    """Return `config` with the policies that its algorithm trains side by side, if it does.

    Raises UsageError where they cannot be those of the run.
    """
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    if not algorithm.sides:
        return config
    return msgspec.structs.replace(config, sides=algorithm.sides, acting=algorithm.acting)


def _agents(folder: RunFolder, config: RunConfig) -> AgentSide:
    if config.agent is None:
        return no_agents
    if config.runners.where == "remote":
        return remote_agents
    plan = AgentPlan(
        agent=config.agent,
        reward=config.reward,
        reward_weights=config.reward_weights or None,
        input=config.input,
        hooks=config.hooks,
        env=config.env,
        workers=config.workers,
        concurrency=config.concurrency,
        isolation=config.isolation,
        log_file=str(folder.worker_log),
    )
    if config.runners.where == "ray":
        from leyden.core.trainer.agents.ray import ray_agents

        return ray_agents(plan, config.runners)
    return worker_agents(plan)
