"""Learning rate schedule: the learning rate of each step as a share of the peak."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_share(step: int, schedule: Schedule, warmup: int, steps: int | None, decay_to: float) -> float:
    """Return the share of the peak for step number `step`, counted from 0.

    It grows over `warmup` steps, the last of which is at the peak: step s has (s + 1) / warmup. After that it falls
    from the peak to `decay_to`, linearly or along half a cosine. It reaches `decay_to` at `steps` and stays there.
    Raises ValueError if a falling schedule has no `steps`.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    if steps is None:
        raise ValueError(f"a {schedule} schedule needs the number of steps")
    passed = min(1.0, (step - warmup) / max(1, steps - warmup))
    left = 1.0 - passed if schedule == "linear" else (1.0 + math.cos(math.pi * passed)) / 2
    return decay_to + (1.0 - decay_to) * left
