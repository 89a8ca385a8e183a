"""Bounds of options: the smallest and largest numbers that a run, a dry run or a server accepts.

The upper bounds are far above what any machine can do. They keep a mistyped number away from a store, a clock or a
library that cannot hold it.
"""

import math
from dataclasses import dataclass

from leyden.core.errors import UsageError

LONGEST_SECONDS = 10_000_000
"""About four months."""
MOST_REWARD = 1e15
"""Largest absolute reward. A larger one would overflow float32, or make the spread of a group infinite."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest and the largest value of a number; with `above`, the smallest value itself is not allowed."""

    least: float
    most: float
    above: bool = False


BOUNDS = {
    "base_rate": Bound(0, 1),
    "candidate": Bound(0, 1_000_000),
    "checkpoint_every": Bound(1, 1_000_000),
    "concurrency": Bound(1, 100_000),
    "cores": Bound(1, 10_000),
    "count": Bound(1, 1_000_000),
    "drain": Bound(0, LONGEST_SECONDS),
    "eval_every": Bound(0, 1_000_000),
    "group_size": Bound(2, 100_000),
    "idle_minutes": Bound(0, LONGEST_SECONDS / 60),
    "jobs": Bound(1, 1_000),
    "keep_checkpoints": Bound(1, 1_000_000),
    "learning_rate": Bound(0, 1_000),
    "limit": Bound(1, 1_000_000_000),
    "max_attempts": Bound(1, 1_000),
    "max_span_per_minute": Bound(1, 1_000_000_000),
    "max_tokens": Bound(1, 10_000_000),
    "max_workers": Bound(1, 10_000),
    "memory": Bound(16, 100_000_000),
    "parallel": Bound(1, 1_000),
    "parent": Bound(1, 2**31),
    "patience": Bound(0, LONGEST_SECONDS),
    "port": Bound(0, 65_535),
    "ray_actors": Bound(1, 10_000),
    "ray_cpus": Bound(0, 10_000),
    "record_within": Bound(0, 2),
    "repeats": Bound(1, 10_000),
    "reward_threshold": Bound(-MOST_REWARD, MOST_REWARD),
    "reward_weight": Bound(-MOST_REWARD, MOST_REWARD),
    "round": Bound(1, 1_000_000),
    "sampler_seed": Bound(0, 2**31),
    "scale_at": Bound(1, 1_000_000_000),
    "seed": Bound(-(10**18), 10**18),
    "show": Bound(0, 1_000_000),
    "steps": Bound(0, 1_000_000),
    "tasks_per_step": Bound(1, 1_000_000),
    "temperature": Bound(0, 1_000),
    "threads": Bound(1, 1_024),
    "timeout": Bound(0, LONGEST_SECONDS, above=True),
    "trials": Bound(1, 100_000),
    "workers": Bound(1, 10_000),
}
"""Bounds by the name of the option, with `_` in the place of `-`."""


def check_bound(name: str, value: float, label: str | None = None) -> None:
    """Raise UsageError where `value` is out of bounds for the option `name`; `label` is its name in the message."""
    bound, label = BOUNDS[name], label or name.replace("_", "-")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{label} must be a finite number, not {value}")
    if bound.above and value <= bound.least:
        limit = "positive" if bound.least == 0 else f"above {_shown(bound.least)}"
    elif value < bound.least == 0:
        raise UsageError(f"{label} must not be negative, got {_shown(value)}")
    elif value < bound.least:
        limit = f"at least {_shown(bound.least)}"
    elif value > bound.most:
        limit = f"at most {_shown(bound.most)}"
    else:
        return
    raise UsageError(f"{label} must be {limit}, not {_shown(value)}")


def _shown(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # Python refuses to write a whole number of thousands of digits
        return "a number of thousands of digits"
