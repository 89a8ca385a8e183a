"""Messages between a scoring process and the process that started it. Each is one JSON value."""

from typing import Literal

import msgspec

ErrorKind = Literal["not stored", "reward failed", "time limit", "process ended"]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a scoring process."""

    reward: str
    """Import string of the reward function."""
    weights: dict[str, float] = {}
    memory: int
    """Bytes of memory that scoring may allocate, beyond those of the loaded function."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `Setup`."""

    problem: str = ""
    """Why the function cannot be used; empty where it can."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to score: task and result in their recorded form."""

    task: str
    result: str


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `Job`: a reward, or why there is none."""

    value: float | None = None
    dimensions: dict[str, float] = {}
    feedback: str = ""
    error: str = ""
    kind: ErrorKind | None = None
    """Kind of the error; None without one."""
