"""`Meter`: seconds and CPU seconds of a training loop, step by step and phase by phase. Needs no library."""

import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Step:
    """One step: what it cost and what it did."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the process and everything below it."""
    phases: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Seconds and CPU seconds by phase; what is in none is the loop's own."""
    rollouts: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    tokens_trained: int = 0
    """Response tokens in the update."""
    reward: float = 0.0


class Meter:
    """Reads both clocks at the borders of phases and steps, and writes the steps to a file."""

    def __init__(self, file: Path, cpu_seconds: Callable[[], float]) -> None:
        self._file, self._cpu_seconds = file, cpu_seconds
        self._steps: list[Step] = []
        self.step = Step()
        """The one that is under way."""
        self._began = self._now()

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the block under `name`."""
        began = self._now()
        try:
            yield
        finally:
            ended, before = self._now(), self.step.phases.get(name, (0.0, 0.0))
            self.step.phases[name] = (before[0] + ended[0] - began[0], before[1] + ended[1] - began[1])

    def end_step(self) -> None:
        """Write the step down and begin the next."""
        now = self._now()
        self.step.seconds, self.step.cpu_seconds = now[0] - self._began[0], now[1] - self._began[1]
        self._steps.append(self.step)
        self._file.write_text(json.dumps([asdict(step) for step in self._steps]))
        self.step, self._began = Step(), now

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), self._cpu_seconds()


def read_steps(file: Path) -> list[Step]:
    """Read what a meter wrote."""
    return [Step(**fields) for fields in json.loads(file.read_text())]


def family_cpu_seconds() -> float:
    """CPU time so far of this process and of all below it that live (Linux)."""
    family = [os.getpid()]
    ticks = 0
    for pid in family:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                family += [int(child) for child in children.read_text().split()]
        except OSError:  # ended meanwhile
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
