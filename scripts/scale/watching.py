"""What processes take while a campaign runs: memory, open files, threads. Linux only: it reads `/proc`.

Knows nothing of what the processes do but their command lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_SHARE = 0.3
"""So much of the time is for starting: growth is looked for in the rest."""
MOST_GROWTH = 0.10
"""From the first to the last third of the rest."""
SMALL_MIB = 20.0
"""So much more is no growth, whatever share it is."""
MOST_OPEN = 8192
"""Files and threads of one process: what the gateway lets in by connections."""


@dataclass(frozen=True, slots=True)
class Look:
    """Sums over the processes of one kind at one moment; `files` and `threads` are the most of one process.

    A page that several processes share, as forks of a worker do, counts once.
    """

    seconds: float
    processes: int
    mib: float
    files: int
    threads: int


def below(parent: int) -> Iterator[int]:
    """The processes that `parent` and its children have started, `parent` first."""
    yield parent
    for task in _entries(f"/proc/{parent}/task"):
        for child in _text(f"{task}/children").split():
            yield from below(int(child))


def kind_of(pid: int) -> str:
    """What a process is, by its command line."""
    words = _text(f"/proc/{pid}/cmdline").replace("\0", " ")
    for mark, kind in (
        ("leyden.core.runner.workers.worker", "workers"),
        ("ray::RunnerHost", "actors"),
        ("supervise.py", "Ray"),
        ("ray", "Ray"),
    ):
        if mark in words:
            return kind
    return "other"


def look(parent: int, seconds: float) -> dict[str, Look]:
    """Look at `parent`, which is the run's own process, and at everything below it."""
    found: dict[str, list[tuple[float, int, int]]] = {}
    for pid in below(parent):
        kind = "run: store, gateway, engine" if pid == parent else kind_of(pid)
        share = re.search(r"^Pss:\s+(\d+) kB", _text(f"/proc/{pid}/smaps_rollup"), re.MULTILINE)
        if share:
            files, threads = len(_entries(f"/proc/{pid}/fd")), len(_entries(f"/proc/{pid}/task"))
            found.setdefault(kind, []).append((int(share[1]) / 1024, files, threads))
    return {
        kind: Look(
            seconds,
            len(of),
            round(sum(mib for mib, _, _ in of), 1),
            max(files for _, files, _ in of),
            max(threads for _, _, threads in of),
        )
        for kind, of in found.items()
    }


def growing(looks: Mapping[str, Sequence[Look]]) -> list[str]:
    """Kinds of processes whose memory does not stay, or that open more than they may, each in one line."""
    wrong: list[str] = []
    for kind, of in looks.items():
        rest = of[int(len(of) * WARM_SHARE) :]
        third = max(1, len(rest) // 3)
        first, last = _mean(rest[:third]), _mean(rest[-third:])
        if last > first * (1 + MOST_GROWTH) and last - first > SMALL_MIB:
            wrong.append(f"{kind}: memory grew from {first:.0f} to {last:.0f} MiB")
        most = max((max(one.files, one.threads) for one in of), default=0)
        if most > MOST_OPEN:
            wrong.append(f"{kind}: one process had {most} files or threads")
    return wrong


def _mean(looks: Sequence[Look]) -> float:
    return sum(one.mib for one in looks) / max(1, len(looks))


def _entries(folder: str) -> list[Path]:
    try:
        return list(Path(folder).iterdir())
    except OSError:  # it has ended
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
