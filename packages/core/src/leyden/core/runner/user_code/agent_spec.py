"""`AgentSpec`: the code that belongs to an agent, by name, and how its rollouts are run."""

from typing import Any

import msgspec

from leyden.core.data.isolation import Isolation


class TaskExample(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a run, which stands for all tasks of the same keys and types of values."""

    place: str
    """Where the task was read: its file and line."""
    task: Any


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which a process runs an agent that it loads itself; structs extend it by `agent`."""

    reward: str | None = None
    """Import string of `score(task, result)`; None when the agent returns or emits its own rewards."""
    reward_weights: dict[str, float] | None = None
    """Weight of each reward dimension; each has weight 1 if there are none."""
    input: str | None = None
    """Import string of `make(task)`, which returns the agent's input. None: the adapter derives it from the task."""
    hooks: tuple[str, ...] = ()
    """Import strings of `Hook` objects or classes."""
    env: tuple[str, ...] = ()
    """Names of environment variables that hold secrets and that a command agent receives nevertheless."""
    concurrency: int = 64
    """Number of concurrent rollouts in each agent process."""
    isolation: Isolation = "auto"
    """Whether rollouts share their agent process or get one each."""


def agent_fields(source: Any) -> dict[str, Any]:
    """Return `agent` and the fields of an `AgentSpec` by name, from an object that has all of them."""
    return {name: getattr(source, name) for name in ("agent", *AgentSpec.__struct_fields__)}
