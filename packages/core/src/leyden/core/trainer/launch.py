"""From a `RunConfig` and rows to a finished run: folder, lock, event loop, and what is left behind when it fails."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError
from leyden.core.trainer.agents import AgentPlan, worker_agents
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.determinism import repeatable
from leyden.core.trainer.display import Display
from leyden.core.trainer.folder import RunFolder
from leyden.core.trainer.report import RunReport
from leyden.core.trainer.session import train

T = TypeVar("T")
Sit = Callable[[RunFolder, RunConfig], RunReport]
"""Does one sitting of a run in a folder that is locked for it."""


def begin(
    runs: Path,
    config: RunConfig,
    tasks: list[Task],
    held_out: Mapping[str, list[Task]],
    sit: Sit,
) -> RunReport:
    """Make the run's folder and train.

    When it turns out before the first step that what was given cannot work, the folder is removed again: nothing
    half-written stays behind.
    """
    folder = RunFolder.create(runs, config, tasks, dict(held_out))
    try:
        return sit(folder, config)
    except UsageError:
        if not folder.checkpoints.exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def resume(runs: Path, name: str, steps: int | None, sit: Sit) -> RunReport:
    """Go on with a run where its last checkpoint left it; `steps` changes the number planned."""
    folder, config = RunFolder.open(runs, name)
    if steps is not None:
        config = msgspec.structs.replace(config, steps=steps)
    return sit(folder, config)


def sit_here(display: Display, resources: NamedResources | None = None) -> Sit:
    """Learning, gateway and engine in this process; agents in worker processes, from import strings."""

    def sit(folder: RunFolder, config: RunConfig) -> RunReport:
        plan = AgentPlan(
            agent=config.agent,
            reward=config.reward,
        reward_weights=config.reward_weights or None,
            input=config.input,
            hooks=config.hooks,
            workers=config.workers,
            concurrency=config.concurrency,
            log_file=str(folder.worker_log),
        )
        with folder.locked(), repeatable(config.deterministic):
            return run_loop(train(folder, config, worker_agents(plan), display, resources))

    return sit


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new event loop, the fast one where there is one; Ctrl-C cancels it."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(main)
    return uvloop.run(main)
