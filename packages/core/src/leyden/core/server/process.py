"""Process of a run: starts `leyden train --resume`, finds it again after the server's end, and ends it.

The process does not end with the server. A server that starts again therefore goes on with it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from leyden.core.runner.commands.supervise import descendants
from leyden.core.server.records import Session

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RunProcess:
    """The process of a run's session; `own` if this server started it, else one of an earlier server."""

    def __init__(self, session: Session, own: "subprocess.Popen[bytes] | None" = None) -> None:
        self.session, self._own = session, own

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        folder: Path,
        output: Path,
        environment: Mapping[str, str],
        cores: set[int],
        slots: Sequence[int],
        step: int,
    ) -> "RunProcess":
        """Run `command` in `folder` on `cores`, and append what it prints to `output`."""
        usual = _bound_to(cores)
        try:
            with open(output, "ab", opener=_private) as printed:
                own = subprocess.Popen(
                    [*command],
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            if usual is not None:
                os.sched_setaffinity(0, usual)
        session = Session(
            pid=own.pid,
            start_time=start_time(own.pid) or 0,
            boot=boot_id(),
            began=time.time(),
            step=step,
            slots=tuple(slots),
        )
        return cls(session, own)

    @classmethod
    def of(cls, session: Session) -> "RunProcess | None":
        """Return the process of a session that an earlier server started; None if it has ended."""
        found = cls(session)
        return found if found.is_alive() else None

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        if self._own is not None:
            return self._own.poll() is None
        return self.session.boot == boot_id() and start_time(self.session.pid) == self.session.start_time

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative after a signal; None while it runs, and for a process of an earlier server."""
        return None if self._own is None else self._own.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, which ends its workers itself."""
        if self.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.session.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        found = family(self.session.pid) if self.is_alive() else []
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let the process outlive this one; Popen would warn of it."""
        if self._own is not None and self._own.poll() is None:
            self._own.returncode = 0

    def memory(self) -> int:
        """Bytes of memory of the process and of all that it has started; pages that they share count once."""
        return sum(_memory_of(pid) for pid in family(self.session.pid)) if self.is_alive() else 0

    def memory_at_most(self) -> int:
        """Bytes of memory where pages that processes share count in each of them: an upper limit, quickly read."""
        return sum(_resident_of(pid) for pid in family(self.session.pid)) if self.is_alive() else 0


def family(pid: int) -> list[int]:
    """Return a process and its descendants, the process first. Without `/proc`, only itself."""
    return [pid, *descendants(pid)]


def start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks since the machine's; None if it has ended, or without `/proc`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    """Return the id of the machine's boot; empty where the system has none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _memory_of(pid: int) -> int:
    """Bytes of a process: its proportional set size, or its resident set size where the former cannot be read."""
    for file, name in (("smaps_rollup", b"Pss:"), ("status", b"VmRSS:")):
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/{file}").read_bytes().splitlines():
                if line.startswith(name):
                    return 1024 * int(line.split()[1])
    return 0


def _resident_of(pid: int) -> int:
    """Bytes of a process's resident set; where that cannot be read, what `_memory_of` returns."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return _memory_of(pid)


def _bound_to(cores: set[int]) -> set[int] | None:
    """Bind this thread, and what it starts, to `cores`; return its cores before, or None where that is not possible."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    return usual


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
