"""Supervisors of `leyden serve` whose runs are scripted."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripted_session import PROGRAM

from leyden.core.server.budget import Budget
from leyden.core.server.session_command import SessionPlan
from leyden.core.server.status import RunStatus
from leyden.core.server.supervisor import Supervisor
from leyden.core.trainer.config import RunConfig

TOKEN = "a-token-of-the-tests-of-servers"
MIB = 1 << 20


def run_config(name: str, steps: int = 3, **more: Any) -> RunConfig:
    return RunConfig(name=name, agent="agent.py:agent", policy="policy", tasks="tasks.jsonl", steps=steps, **more)


def budget(memory: int = 200, cores: int = 1) -> Budget:
    return Budget(memory=memory * MIB, cores=cores)


async def until(supervisor: Supervisor, name: str, *states: str) -> RunStatus:
    """Wait until a run is in one of these states."""
    async with asyncio.timeout(60):
        while (status := supervisor.status(name)).state not in states:
            await asyncio.sleep(0.02)
    return status


async def until_step(supervisor: Supervisor, name: str, step: int) -> None:
    """Wait until a run has taken a step."""
    async with asyncio.timeout(60):
        while supervisor.status(name).step < step:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def supervising(runs: Path, memory: int = 1000, cores: int = 2) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(runs, budget(memory, cores), SessionPlan(project=runs.parent, program=PROGRAM))
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
