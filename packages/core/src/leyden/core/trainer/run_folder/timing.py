"""Time usage: measures wall-clock and CPU time."""

import resource
import time
from typing import NamedTuple


class TimeUsage(NamedTuple):
    """Reading of both clocks, in seconds; the difference of two readings is the time used between them."""

    seconds: float
    cpu_seconds: float
    """CPU time of this process and of its ended child processes."""

    @classmethod
    def now(cls) -> "TimeUsage":
        """Read the clocks."""
        used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return cls(time.monotonic(), sum(of.ru_utime + of.ru_stime for of in used))

    def since(self, began: "TimeUsage") -> "TimeUsage":
        """Return the time used between `began` and this reading."""
        return TimeUsage(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)
