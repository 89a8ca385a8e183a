"""Which numbers a run, a dry run or a server can be given. The one place for it.

The upper bounds are far above what any machine can do. They keep a slip of the finger from a store, a clock or a
library that cannot hold the number.
"""

import math
from dataclasses import dataclass

from leyden.core.errors import UsageError

LONGEST_SECONDS = 10_000_000
"""Some four months."""
MOST_REWARD = 1e15
"""No reward is larger, one way or the other: float32, and the spread of a group, would not be finite any more."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least and the most that a number can be; with `above`, it is more than the least."""

    least: float
    most: float
    above: bool = False


BOUNDS = {
    "base_rate": Bound(0, 1),
    "checkpoint_every": Bound(1, 1_000_000),
    "concurrency": Bound(1, 100_000),
    "count": Bound(1, 1_000_000),
    "eval_every": Bound(0, 1_000_000),
    "group_size": Bound(2, 100_000),
    "keep_checkpoints": Bound(1, 1_000_000),
    "learning_rate": Bound(0, 1_000),
    "max_attempts": Bound(1, 1_000),
    "max_span_per_minute": Bound(1, 1_000_000_000),
    "patience": Bound(0, LONGEST_SECONDS),
    "port": Bound(0, 65_535),
    "ray_actors": Bound(1, 10_000),
    "ray_cpus": Bound(0, 10_000),
    "record_within": Bound(0, 2),
    "reward_threshold": Bound(-MOST_REWARD, MOST_REWARD),
    "reward_weight": Bound(-MOST_REWARD, MOST_REWARD),
    "scale_at": Bound(1, 1_000_000_000),
    "seed": Bound(-(10**18), 10**18),
    "steps": Bound(1, 1_000_000),
    "tasks_per_step": Bound(1, 1_000_000),
    "temperature": Bound(0, 1_000),
    "threads": Bound(1, 1_024),
    "timeout": Bound(0, LONGEST_SECONDS, above=True),
    "workers": Bound(1, 10_000),
}
"""By the name of the option, with `_` for `-`."""


def check_bound(name: str, value: float, said: str | None = None) -> None:
    """Raise UsageError where `value` cannot be the number called `name`; `said` is what a message calls it."""
    bound, said = BOUNDS[name], said or name.replace("_", "-")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{said} must be a finite number, not {value}")
    if bound.above and value <= bound.least:
        limit = "positive" if bound.least == 0 else f"above {_shown(bound.least)}"
    elif value < bound.least == 0:
        raise UsageError(f"{said} must not be negative, got {_shown(value)}")
    elif value < bound.least:
        limit = f"at least {_shown(bound.least)}"
    elif value > bound.most:
        limit = f"at most {_shown(bound.most)}"
    else:
        return
    raise UsageError(f"{said} must be {limit}, not {_shown(value)}")


def _shown(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # Python writes no whole number of thousands of digits
        return "a number of thousands of digits"
