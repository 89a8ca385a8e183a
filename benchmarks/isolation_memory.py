"""A reward that is the memory of the process that it is called in: `isolation.py` reads it."""

from pathlib import Path
from typing import Any


def private_mib(task: Any, result: Any) -> float:
    """MiB that no other process shares."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    sizes = {words[0]: int(words[1]) for words in lines if len(words) == 3}
    return (sizes["Private_Dirty:"] + sizes["Private_Clean:"]) / 1024
