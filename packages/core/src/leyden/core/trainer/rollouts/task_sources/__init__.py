"""Task sources: the formats that tasks are read from, one module each.

Each reader yields a `PlacedTask` for each task, lazily, so that a caller that takes a few tasks reads only those.
"""

from typing import NamedTuple

from leyden.core.data.rollout import Task


class PlacedTask(NamedTuple):
    """A task, and where its source has it, such as `line 3` or `row 2`."""

    place: str
    task: Task
