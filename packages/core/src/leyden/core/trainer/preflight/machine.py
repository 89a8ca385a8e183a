"""Free memory of this machine or its GPU."""

import os
from pathlib import Path

MEMINFO, CGROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
LIMIT = "LEYDEN_MEMORY_LIMIT"
"""Variable with the bytes that a run may use; `leyden serve` sets it to the run's budget."""


def free_memory(device: str) -> int | None:
    """Return the bytes that a new process could allocate on `device`, `cpu` or `cuda`; None if unknown."""
    return _free_on_gpu() if device.startswith("cuda") else _free_here()


def _free_on_gpu() -> int | None:
    from leyden.core.policy.size import free_on_gpu

    return free_on_gpu()


def _free_here() -> int | None:
    known = [bytes_ for bytes_ in (_available(), *_left_in_groups(), _limit()) if bytes_ is not None]
    return min(known, default=None) if known else _all_of_it()


def _limit() -> int | None:
    given = os.environ.get(LIMIT, "")
    return int(given) if given.isdecimal() else None


def _available() -> int | None:
    """Return what Linux estimates a new process could use without swapping."""
    text = _read(MEMINFO) or ""
    line = next((line for line in text.splitlines() if line.startswith("MemAvailable:")), None)
    return None if line is None else 1024 * int(line.split()[1])


def _left_in_groups() -> list[int | None]:
    """Return what the memory limits of a container leave. File pages that can be dropped do not count as used."""
    first, second = CGROUPS / "memory", CGROUPS
    return [
        _left(second / "memory.max", second / "memory.current", second / "memory.stat", "inactive_file"),
        _left(
            first / "memory.limit_in_bytes",
            first / "memory.usage_in_bytes",
            first / "memory.stat",
            "total_inactive_file",
        ),
    ]


def _left(limit: Path, used: Path, stat: Path, droppable: str) -> int | None:
    limited, taken = _read(limit), _read(used)
    if limited is None or taken is None or not limited.strip().isdigit() or int(limited) >= 1 << 62:
        return None
    lines = (_read(stat) or "").splitlines()
    dropped = next((int(line.split()[1]) for line in lines if line.startswith(f"{droppable} ")), 0)
    return max(0, int(limited) - int(taken) + dropped)


def _all_of_it() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not available on Windows
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
