"""Budgets: the memory and the cores of each run, and what of the server's own is left."""

import os
import re
from collections.abc import Iterable, Sequence

import msgspec

from leyden.core.data.bounds import check_bound
from leyden.core.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
LEAST_MEMORY = 64 << 20
"""No run fits into less; a smaller number was meant in another unit."""
MOST_MEMORY = 1 << 50


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use, or what a server may hand out."""

    memory: int
    """Bytes of memory of all processes of the run together."""
    cores: int
    """Number of processor cores."""

    def __post_init__(self) -> None:
        """Raise UsageError for a budget that no run can work with."""
        if not LEAST_MEMORY <= self.memory <= MOST_MEMORY:
            raise UsageError(f"memory must be from {shown(LEAST_MEMORY)} to 1024 TiB, not {shown(self.memory)}")
        check_bound("cores", self.cores)

    def __str__(self) -> str:
        return f"{shown(self.memory)} of memory and {_cores(self.cores)}"


DEFAULT = Budget(memory=4 << 30, cores=1)
"""Budget of a run that names none; on a server with less memory, all of it."""


def read_size(text: str, option: str = "--memory") -> int:
    """Return the bytes of a size such as `8GiB`, `512M` or `1073741824`; raises UsageError for any other text.

    Units are powers of 1024, whether they are written `G`, `GB` or `GiB`.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} takes a size such as 8GiB or 512MiB, not {text[:40]!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def shown(size: int) -> str:
    """Format a number of bytes, as `read_size` reads it."""
    for unit in ("TiB", "GiB", "MiB"):
        if size >= (whole := _UNITS[unit[0]]):
            return f"{size / whole:.4g} {unit}"
    return f"{size} bytes"


def _cores(number: int) -> str:
    return f"{number} {'core' if number == 1 else 'cores'}"


def own_budget(memory: int | None, cores: int | None) -> Budget:
    """Return the budget of a server: what was given, by default all cores and nine tenths of the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Budget(memory=memory or machine * 9 // 10, cores=cores or len(usable_cores()))


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def free_slots(total: Budget, taken: Iterable[Sequence[int]]) -> list[int]:
    """Return the core slots that no run has. A server of N cores has the slots 0 to N - 1."""
    used = {slot for slots in taken for slot in slots}
    return [slot for slot in range(total.cores) if slot not in used]


def cores_of(slots: Sequence[int]) -> set[int]:
    """Return the cores of the machine that belong to slots.

    A server with more slots than the machine has cores gives several slots the same core.
    """
    usable = usable_cores()
    return {usable[slot % len(usable)] for slot in slots}


def why_not(wanted: Budget, total: Budget, left_memory: int, left_cores: int) -> str | None:
    """Return why a run does not fit into what is left; None if it does."""
    lacking = [
        f"{shown(wanted.memory)} of memory ({shown(max(left_memory, 0))} of {shown(total.memory)} left)"
        if wanted.memory > left_memory
        else "",
        f"{_cores(wanted.cores)} ({left_cores} of {total.cores} left)" if wanted.cores > left_cores else "",
    ]
    text = " and ".join(filter(None, lacking))
    return f"waits for {text}" if text else None


def check_fits(wanted: Budget, total: Budget) -> None:
    """Raise UsageError for a run that this server could never start."""
    if wanted.memory > total.memory or wanted.cores > total.cores:
        raise UsageError(
            f"the run's budget is {wanted}, and this server has only {total}: give a smaller --memory or --cores"
        )
