"""Supervisor process between a worker and a command: `python -I -S supervise.py CONTROL GRACE WHERE COMMAND...`.

It starts the command in a process group of its own and runs until none of its processes is left. That includes
background processes and, on Linux, processes in other sessions.

`CONTROL` is a socket to the worker. Each byte that arrives is the number of a signal for the command. The end of the
socket means that the command must end, because the worker requested it or was killed. The supervisor sends back one
line: `exit CODE`, `signal NUMBER` or `error TEXT`.

It imports only modules that load fast, because it is started once for every attempt.
"""

import os
import select
import signal
import sys
import time

SET_CHILD_SUBREAPER = 36
TERMINAL = "terminal"
"""Value of `WHERE` if the command may use the terminal on standard input. With any other value it may not."""


class SupervisedCommand:
    """The command, once it runs."""

    def __init__(self, command: list[str]) -> None:
        self.code: int | None = None
        """Exit code, once the command has ended. Negative: the number of the signal that killed it."""
        self._woken, waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waking, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        ours = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these signals; the command must not
        self.group = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=ours)

    def wait(self, control: int, *, wake_up: bool) -> None:
        """Wait until the command has ended or `control` is closed. Forwards signals meanwhile.

        With `wake_up`, a stopped command is resumed at once, because no other process would notice and resume it.
        """
        while self.code is None:
            ready, _, _ = select.select([control, self._woken], [], [])
            if control in ready:
                signals = os.read(control, 64)
                if not signals:
                    return
                for number in signals:
                    self.send(number)
            if self._reap() and wake_up:
                self.send(signal.SIGCONT)

    def send(self, number: int) -> None:
        """Send a signal to the command's process group."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return

    def end(self, grace: float) -> None:
        """Send SIGTERM to the command, and wait at most `grace` seconds until its group has ended."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        deadline = time.monotonic() + grace
        while self._group_lives() and (left := deadline - time.monotonic()) > 0:
            select.select([self._woken], [], [], left)
            self._reap()

    def sweep(self) -> None:
        """Kill all remaining processes of the command and wait until they have ended.

        Processes of another user cannot be killed and are not waited for.
        """
        self.send(signal.SIGKILL)
        while True:
            ending = [child for child in children() if kill(child)]
            if self.code is None and self.group not in ending:
                ending.append(self.group)
            if not ending:
                return
            for child in ending:
                self._note(*os.waitpid(child, 0))

    def _reap(self) -> bool:
        """Reap all ended children. Returns whether the command was stopped."""
        try:
            while os.read(self._woken, 512):
                continue
        except BlockingIOError:
            pass
        stopped = False
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return stopped
            if child == 0:
                return stopped
            if os.WIFSTOPPED(status):
                stopped = True
            else:
                self._note(child, status)

    def _note(self, child: int, status: int) -> None:
        if child == self.group:
            self.code = os.waitstatus_to_exitcode(status)

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _nothing(number: int, frame: object) -> None:
    """Do nothing: the call of any handler wakes `select`."""


def children() -> list[int]:
    """Return the pids of this process's children, with adopted orphans. Empty where there is no `/proc`."""
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def parents() -> dict[int, int]:
    """Return the parent's pid of every process, by pid. Empty where there is no `/proc`."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1:
                found[int(entry)] = int(fields[1])
    return found


def descendants(root: int) -> list[int]:
    """Return all processes that a process and its descendants have started, the nearest first."""
    below: dict[int, list[int]] = {}
    for child, parent in parents().items():
        below.setdefault(parent, []).append(child)
    found = list(below.get(root, []))
    for pid in found:
        found += below.get(pid, [])
    return found


def kill(child: int) -> bool:
    """Kill a child. Returns False where this process lacks the permission."""
    try:
        os.kill(child, signal.SIGKILL)
    except PermissionError:
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of orphans of the command. Works on Linux only."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lend_terminal(group: int) -> int:
    """Make `group` the terminal's foreground group, as a shell does. Returns the previous group."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    before = os.tcgetpgrp(0)
    os.tcsetpgrp(0, group)
    os.killpg(group, signal.SIGCONT)
    return before


def supervise(control: int, grace: float, command: list[str], *, terminal: bool) -> str:
    """Run `command` to its end and return the line for the worker."""
    try:
        running = SupervisedCommand(command)
    except (OSError, ValueError) as error:
        return f"error {getattr(error, 'strerror', None) or error}"
    before = lend_terminal(running.group) if terminal else None
    running.wait(control, wake_up=terminal)
    if running.code is None:
        running.end(grace)
    running.sweep()
    if before is not None:
        os.tcsetpgrp(0, before)
    code = running.code or 0
    return f"signal {-code}" if code < 0 else f"exit {code}"


def main(arguments: list[str]) -> None:
    """Run the supervisor with the command line's arguments, which the module docstring describes."""
    control, grace, terminal_mode, *command = arguments
    os.set_inheritable(int(control), False)
    adopt_orphans()
    status = supervise(int(control), float(grace), command, terminal=terminal_mode == TERMINAL)
    try:
        os.write(int(control), f"{status}\n".encode())
    except OSError:  # the worker is gone or no longer reads
        return


if __name__ == "__main__":
    main(sys.argv[1:])
