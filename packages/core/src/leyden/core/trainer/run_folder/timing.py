"""`Usage`: how much time has gone by, on the wall and on the CPU."""

import resource
import time
from typing import NamedTuple


class Usage(NamedTuple):
    """A reading of both clocks; the difference of two is what was used in between."""

    seconds: float
    cpu_seconds: float
    """Of this process and of those of its children that have ended."""

    @classmethod
    def now(cls) -> "Usage":
        """Read the clocks."""
        used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return cls(time.monotonic(), sum(of.ru_utime + of.ru_stime for of in used))

    def since(self, began: "Usage") -> "Usage":
        """What was used between `began` and this reading."""
        return Usage(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)
