"""The process between a worker and a command: `python -I -S supervise.py CONTROL GRACE WHERE COMMAND...`.

It starts the command in a process group of its own and stays until nothing of it is left: not what it put into the
background, and on Linux not what it put into another session either. `CONTROL` is a socket to the worker: each byte
that arrives is the number of a signal for the command, and its end means that the command is to end, whether the
worker asked for that or was killed. One line goes back: `exit CODE`, `signal NUMBER` or `error TEXT`.

Imports only what is cheap to load: it is started once for every attempt. Knows nothing of Leyden.
"""

import os
import select
import signal
import sys
import time

SET_CHILD_SUBREAPER = 36
TERMINAL = "terminal"
"""`WHERE`, when the command is to have the terminal that is our standard input; anything else: it is not."""


class Supervised:
    """The command, once it runs."""

    def __init__(self, command: list[str]) -> None:
        self.code: int | None = None
        """Its exit code once it has ended; the negative number of the signal that killed it."""
        self._woken, waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waking, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        ours = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these; the command must not
        self.group = os.posix_spawnp(command[0], command, os.environ, setpgroup=0, setsigdef=ours)

    def wait(self, control: int, *, wake_up: bool) -> None:
        """Wait until the command has ended, passing signals on, or until `control` is closed.

        With `wake_up`, a command that was stopped goes on at once: nobody else could see it and wake it.
        """
        while self.code is None:
            ready, _, _ = select.select([control, self._woken], [], [])
            if control in ready:
                asked = os.read(control, 64)
                if not asked:
                    return
                for number in asked:
                    self.send(number)
            if self._reap() and wake_up:
                self.send(signal.SIGCONT)

    def send(self, number: int) -> None:
        """Send a signal to the command and what it has started."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return

    def end(self, grace: float) -> None:
        """Ask it to end, and wait at most `grace` seconds until its group is gone."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        deadline = time.monotonic() + grace
        while self._group_lives() and (left := deadline - time.monotonic()) > 0:
            select.select([self._woken], [], [], left)
            self._reap()

    def sweep(self) -> None:
        """Kill whatever is left of it, and wait until that is gone; what runs as another user cannot be killed."""
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
        """Take note of every child that has ended; returns whether the command was stopped."""
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
    """Being called at all is what wakes `select` up."""


def children() -> list[int]:
    """Our living children, where `/proc` tells: the command's orphans are among them."""
    ours, found = str(os.getpid()), list[int]()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1 and fields[1].decode() == ours:
                found.append(int(entry))
    return found


def kill(child: int) -> bool:
    """Kill one of our children; returns whether we may."""
    try:
        os.kill(child, signal.SIGKILL)
    except PermissionError:
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of what the command leaves behind, where the system can do that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lend_terminal(group: int) -> int:
    """Give the terminal to `group`, as a shell does; returns the group that had it."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    before = os.tcgetpgrp(0)
    os.tcsetpgrp(0, group)
    os.killpg(group, signal.SIGCONT)
    return before


def supervise(control: int, grace: float, command: list[str], *, terminal: bool) -> str:
    """Run `command` to its end and return what the worker is told."""
    try:
        running = Supervised(command)
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
    """Run what the command line says; see the module's first line."""
    control, grace, where, *command = arguments
    os.set_inheritable(int(control), False)
    adopt_orphans()
    said = supervise(int(control), float(grace), command, terminal=where == TERMINAL)
    try:
        os.write(int(control), f"{said}\n".encode())
    except OSError:  # the worker is gone, or does not listen any more
        return


if __name__ == "__main__":
    main(sys.argv[1:])
