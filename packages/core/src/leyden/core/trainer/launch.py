"""Start of runs: turns a `RunConfig` and task rows into a finished run, resumes a run, or checks one.

Creates and locks the run folder, runs the event loop, and cleans up after a failure.
"""

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
from leyden.core.policy.source import check_sources_of_run, where_it_counts_from
from leyden.core.runner.user_code.agent_spec import agent_fields
from leyden.core.trainer.agents.local import AgentPlan, AgentSide, no_agents, remote_agents, worker_agents
from leyden.core.trainer.config import RunConfig, check_in_clear, save_config
from leyden.core.trainer.event_loop import Terminated, ended_by_sigterm, run_loop
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.preflight.rehearsal import ENOUGH_ROLLOUTS, MOST_BATCHES
from leyden.core.trainer.preflight.report import CheckReport
from leyden.core.trainer.run_folder.folder import RunFolder, is_free
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.sharing.artifacts import settled_url
from leyden.core.trainer.run_folder.sharing.store_location import (
    StoreLocation,
    check_same_store,
    checked_uri,
    remember_store,
    settled_uri,
)
from leyden.core.trainer.run_state import end_recorded, note_end
from leyden.core.trainer.serving.endpoint import check_model
from leyden.core.trainer.session import check, train

T = TypeVar("T")
SessionFunction = Callable[[RunFolder, RunConfig], RunReport]
"""Runs one session (one process's part of a run) in a run folder, which it locks, and returns the run's report."""
CheckFunction = Callable[[RunFolder, RunConfig], CheckReport]
"""Runs the check of a run in a run folder, which it locks, and returns the check's report."""
MOST_NAME = 50
"""Number of characters of the run's name that its check's name keeps: names have a maximum length."""
TASKS_OF_A_CHECK = 4
"""Minimum number of tasks in each batch of `check_run`, which takes further batches if the first is inconclusive."""


def begin(
    runs: Path,
    config: RunConfig,
    tasks: list[Task],
    held_out: Mapping[str, list[Task]],
    run_session: SessionFunction,
) -> RunReport:
    """Create the run's folder, train, and return the run's report.

    Raises RunError when the name is taken, and UsageError or CheckFailed when the given settings cannot work. If that
    happens before the first checkpoint, the folder is removed, so that no half-written run remains. The folder stays if
    an attempt was started or an agent printed something. `leyden why` reads it then, and the next run of the same name
    replaces it. After NothingToLearn the folder always stays and the run can be resumed, so that its rollouts are not
    paid for twice.
    """
    config = validated(config, tasks)
    folder = RunFolder.create(runs, config, tasks, dict(held_out))
    try:
        return _recorded(folder, config, run_session)
    except (UsageError, CheckFailed) as error:
        if not isinstance(error, NothingToLearn) and not folder.checkpoints.exists():
            _keep_evidence(folder, error)
        raise


def validated(config: RunConfig, tasks: list[Task]) -> RunConfig:
    """Return the configuration with which a run begins, with the settings that the algorithm records.

    Raises UsageError for settings that cannot work.
    """
    prepare_masking(config)
    check_needed(config, tasks)
    check_machine(config)
    return with_recorded_settings(with_sides(_settled(config)))


def _recorded(folder: RunFolder, config: RunConfig, run_session: SessionFunction) -> RunReport:
    """Run a session; if an error or a request ends it, the run's folder has that until the next session begins."""
    if not folder.is_in_use():
        folder.forget_session_end()
    try:
        return run_session(folder, config)
    except (Exception, KeyboardInterrupt, Terminated) as end:
        if folder.path.exists() and not folder.is_in_use():  # a second process is refused while the first one trains
            note_end(folder, end)
        raise


def _keep_evidence(folder: RunFolder, error: Exception) -> None:
    """Record the reason in the folder of a run that ended before its first step; remove a folder without evidence."""
    if _has_evidence(folder):
        folder.note_failure(error)
    else:
        shutil.rmtree(folder.path, ignore_errors=True)


def _has_evidence(folder: RunFolder) -> bool:
    """Whether an agent printed something, or an attempt of a rollout was started."""
    if folder.worker_log.exists() and folder.worker_log.stat().st_size:
        return True
    try:
        location = folder.store_location
        return location.exists and run_loop(_started_rollouts(location)) > 0
    except (LeydenError, OSError):  # a store that cannot be opened, which is perhaps why the run ended
        return False


async def _started_rollouts(location: StoreLocation) -> int:
    """Number of the run's rollouts that have an attempt."""
    store = await location.open(clock=lambda: 0.0)
    try:
        return sum(isinstance(rollout, AttemptedRollout) for rollout in await store.query_rollouts())
    finally:
        await store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeChanges:
    """Settings that a resumed run changes."""

    steps: int | None = None
    """Total number of planned steps, for this session only."""
    device: str | None = None
    """Device of policy and engine from this session on."""
    ray_address: str | None = None
    """Address of the Ray cluster that hosts the runners' actors."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the algorithm by key; dots in a key separate the parts of a nested option. Only keys that
    `Algorithm.check_change` accepts are allowed."""
    store: str | None = None
    """URI of the run's store, which must be the one that the run began with: it may add the password."""


def resume(
    runs: Path,
    name: str,
    run_session: SessionFunction,
    changes: ResumeChanges | None = None,
    *,
    has_agent: bool = False,
) -> RunReport:
    """Resume a run after its last checkpoint and return its report.

    All changes except the number of steps are written to `config.yaml` and stay in effect for later sessions. With
    `has_agent`, `run_session` runs an agent that is an object of this process. Raises UsageError for a change that is
    not allowed or files that are not on this machine, and RunError for a run that cannot be resumed.
    """
    changes = changes or ResumeChanges()
    folder, config, different = _resumable(runs, name, changes)
    if not has_agent and isinstance(config.agent, str) and config.agent.startswith("<"):
        raise UsageError(
            f"the agent of run {folder.path.name!r} is a Python object, {config.agent[1:-1]}, which this command does "
            f"not have: continue the run in its own program with trainer.resume(agent, {folder.path.name!r})"
        )
    check_sources_of_run([*config.policies.values(), *config.frozen.values()])
    if not has_agent and (missing := _missing_file(config)) is not None:
        raise UsageError(f"{missing} does not exist{where_it_counts_from(str(missing))}")
    _keep_changes(folder, config, different)
    if changes.steps is not None:
        different = msgspec.structs.replace(different, steps=changes.steps)
    return _recorded(folder, different, run_session)


def change_run(runs: Path, name: str, changes: ResumeChanges) -> None:
    """Write `changes`, except the number of steps, for a session that another process will begin.

    Raises what `resume` raises for changes and for a run that cannot be resumed; nothing is written then.
    """
    folder, config, different = _resumable(runs, name, changes)
    _keep_changes(folder, config, different)


def _resumable(runs: Path, name: str, changes: ResumeChanges) -> tuple[RunFolder, RunConfig, RunConfig]:
    """Open a run that is to be resumed; return its folder, its configuration, and that with the permanent changes.

    Raises UsageError for a change that is not allowed, and RunError for a run that cannot be resumed.
    """
    folder, config = RunFolder.open(runs, name)
    prepare_masking(config)
    if changes.store is not None:
        check_same_store(config.store, changes.store, name)
        remember_store(settled_uri(changes.store))
    if config.store is not None and not StoreLocation(config.store).is_kept:
        raise RunError(f"run {name!r} kept its rollouts in memory, which ended with its process: start it again")
    if (failure := folder.failure()) is not None:
        first = failure.splitlines()[0]
        raise RunError(
            f"run {name!r} ended before its first step ({first}) and cannot be resumed; start it again, with the same "
            "or another name"
        )
    check_command(name, config)
    done = max((int(line.get("step", 0)) for line in folder.metrics()), default=0)
    if changes.steps is not None and changes.steps < done:
        raise UsageError(f"run {name!r} has already taken {done} steps; give --steps above {done} to go on")
    different = changed(config, changes)
    check_machine(different)
    return folder, config, different


def _keep_changes(folder: RunFolder, config: RunConfig, different: RunConfig) -> None:
    if different != config:
        with folder.locked():
            save_config(different, folder.config_file)


def check_files(config: RunConfig) -> None:
    """Raise UsageError if a Python file of a new run's agent is not on this machine, where its workers run."""
    if (missing := _missing_file(config)) is not None:
        where = "" if missing.is_absolute() else where_it_counts_from(str(missing))
        raise UsageError(f"{missing} does not exist{where}")


def _missing_file(config: RunConfig) -> Path | None:
    """Return the first Python file of a run's agent that is not on this machine, where its workers run."""
    references = (config.agent, config.reward, config.input, *config.hooks)
    for reference in references if config.runners.where == "local" else ():
        path = reference.rpartition(":")[0] if isinstance(reference, str) else ""
        if path.endswith(".py") and not Path(path).exists():
            return Path(path)
    return None


def _settled(config: RunConfig) -> RunConfig:
    """Return `config` with places that do not depend on the working folder.

    Raises UsageError for artifacts that cannot be used, and for a URI that no store has.
    """
    if config.store is not None:
        uri = checked_uri(config.store)
        config = msgspec.structs.replace(config, store=uri)
        if not uri.startswith("<"):  # the address of a store object is known already
            remember_store(uri)
    if config.artifacts is not None:
        config = msgspec.structs.replace(config, artifacts=settled_url(config.artifacts))
    return config


def check_command(name: str, config: RunConfig) -> None:
    """Raise RunError for a run whose command line held a secret: `config.yaml` does not keep secrets."""
    command = () if config.agent is None or isinstance(config.agent, str) else config.agent
    if masked := [argument for argument in command if MASK in argument]:
        raise RunError(
            f"run {name!r} cannot be resumed: its command held a secret ({masked[0]!r}), which config.yaml does not "
            "keep; start a new run, and pass the secret in a variable with --env NAME"
        )


def changed(config: RunConfig, changes: ResumeChanges) -> RunConfig:
    """Return `config` with the permanent `changes`.

    Raises UsageError for a change that is not allowed or cannot work.
    """
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


def check_run(runs: Path, config: RunConfig, tasks: list[Task], run_check: CheckFunction) -> CheckReport:
    """Check that a run would learn, on smaller batches than those of the run, and return the check's report.

    The check has a folder of its own, named like the run with the suffix `-check`, which is removed afterwards. If the
    check fails or rollouts fail, the folder stays for inspection until the next check of the same name. Raises
    UsageError for settings that cannot work.
    """
    prepare_masking(config)
    check_needed(config, tasks)
    check_machine(config)
    if not tasks:
        raise UsageError(f"{config.algorithm} learns from spans: it makes no rollouts that could be checked")
    wanted = math.ceil(ENOUGH_ROLLOUTS / MOST_BATCHES / config.group_size)
    fewer = min(config.tasks_per_step, max(TASKS_OF_A_CHECK, wanted))
    settings = make_algorithm(config.algorithm, config.algorithm_config).without_held_out(config.algorithm_config)
    smaller: dict[str, Any] = {
        "tasks_per_step": fewer,
        "held_out": (),
        "eval_every": 0,
        "patience": None,
        "algorithm_config": settings,
    }
    config = msgspec.structs.replace(
        with_sides(_settled(config)), name=_free_name(runs, f"{config.name[:MOST_NAME]}-check"), **smaller
    )
    is_first = not runs.exists()
    folder = RunFolder.create(runs, config, tasks, {})
    try:
        report = run_check(folder, config)
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
    """Return `name`, with a number as suffix if another process has a check under that name."""
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    return next((one for one in names if is_free(runs / one)), name)


def _remove_if_empty(runs: Path) -> None:
    with suppress(OSError):
        runs.rmdir()


def train_here(display: Display, resources: NamedResources | None = None) -> SessionFunction:
    """Return a `SessionFunction` that trains in this process; agents run in worker processes, from import strings.

    Learning, gateway and engine run in this process.
    """

    def run_session(folder: RunFolder, config: RunConfig) -> RunReport:
        with folder.locked(), end_recorded(folder), repeatable(config.deterministic):
            work = train(folder, config, _agents(folder, config), display, resources)
            return run_loop(ended_by_sigterm(work))

    return run_session


def check_here(display: Display, resources: NamedResources | None = None) -> CheckFunction:
    """Return a `CheckFunction` that checks in this process; processes as for `train_here`."""

    def run_check(folder: RunFolder, config: RunConfig) -> CheckReport:
        with folder.locked(), repeatable(config.deterministic):
            work = check(folder, config, _agents(folder, config), display, resources)
            return run_loop(ended_by_sigterm(work))

    return run_check


def prepare_masking(config: RunConfig) -> None:
    """Mask secrets in Leyden's logs from now on, including the values of the variables named in `config.env`."""
    mask_own_logs()
    for name in config.env:
        remember_secret(os.environ.get(name, ""))


def check_needed(config: RunConfig, tasks: list[Task]) -> None:
    """Raise UsageError if agent or tasks are missing or unused, or if the algorithm cannot take the number of steps.

    An algorithm that learns from stored spans takes an agent only together with held-out tasks, for evaluation.
    """
    given = {"an agent": config.agent is not None, "tasks": bool(tasks)}
    check_in_clear(config)
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    check_model(type(algorithm), policy=config.policy is not None, endpoint=config.endpoint is not None)
    if config.steps:
        algorithm.check_steps(config.steps)
    elif not config.held_out:
        raise UsageError("steps 0 only evaluates a policy, and there are no held-out tasks; give some with --val")
    elif config.algorithm != "lightning_rl" or config.algorithm_config.get("critic"):
        raise UsageError("steps 0 only evaluates a policy: leave the algorithm and its critic out")
    if algorithm.needs_rollouts:
        missing = " and ".join(what for what, is_given in given.items() if not is_given)
        if missing:
            raise UsageError(f"{config.algorithm} learns from its own rollouts, and needs {missing}")
    elif config.held_out and config.agent is None:
        raise UsageError("held-out tasks need an agent to run them")
    elif tasks:
        raise UsageError(
            f"tasks have no effect: {config.algorithm} learns from spans; give held-out tasks to evaluate it"
        )
    elif config.agent is not None and not config.held_out:
        raise UsageError(
            f"an agent has no effect: {config.algorithm} learns from spans, and there are no held-out tasks"
        )


def check_machine(config: RunConfig) -> None:
    """Raise UsageError if this machine lacks the run's device, or what a provider needs that a route names.

    Algorithms that serve themselves choose their devices.
    """
    if providers := config.providers:
        from leyden.core.gateway.upstream.litellm_library import check_provider

        for given in providers.values():
            check_provider(given, f"--route to={given}")
    if not make_algorithm(config.algorithm, config.algorithm_config).serves_itself:
        check_device(config.device)


def with_sides(config: RunConfig) -> RunConfig:
    """Return `config` with the policies that the algorithm trains side by side; unchanged if it trains none.

    Raises UsageError if the run's policies do not allow them.
    """
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    if not algorithm.sides:
        return config
    return msgspec.structs.replace(config, sides=algorithm.sides, acting=algorithm.acting)


def with_recorded_settings(config: RunConfig) -> RunConfig:
    """Return `config` with the algorithm's settings as they are recorded."""
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    return msgspec.structs.replace(config, algorithm_config=algorithm.recorded(config.algorithm_config))


def _agents(folder: RunFolder, config: RunConfig) -> AgentSide:
    if config.agent is None:
        return no_agents
    if config.runners.where == "remote":
        return remote_agents
    plan = AgentPlan(
        **agent_fields(config),
        workers=config.workers,
        max_workers=config.max_workers,
        examples=folder.task_examples(config),
        log_file=str(folder.worker_log),
    )
    if config.runners.where == "ray":
        from leyden.core.trainer.agents.ray import ray_agents

        return ray_agents(plan, config.runners)
    return worker_agents(plan)
