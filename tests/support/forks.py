"""Processes that have loaded their libraries before they begin: forks of a template, in the place of a new Python.

Loading a framework, or torch and transformers, takes longer than most of what a test starts is about. A template loads
them once. `python_of` writes a program to be started in the place of Python (`sys.executable`): it requests a fork of
the template for workers and learners, and for the processes of pytest-xdist, and is Python itself for all else. A fork
is a process of its own in all else: environment, folder, descriptors, exit code; signals that the program is sent reach
it.

    python forks.py SOCKET MODULE...

is the template. It ends with its standard input.
"""

import atexit
import fcntl
import gc
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType

import msgspec

PROGRAM = Path(__file__).with_name("forked_python.py")
KNOWN_TO_PYTEST = {"anyio", "langsmith"}
"""Packages that bring a plugin along: pytest would warn that it can rewrite no assertions of what is loaded already."""


class Request(msgspec.Struct, frozen=True):
    """What a fork is to become: Python with these arguments."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]
    """The numbers that it has them by."""
    client: int
    """The process that its parent has started, and takes for it."""


def python_of(place: Path, to: Path) -> str:
    """Write the program whose forks are requested at the socket `place` into the file `to`; returns its path."""
    to.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {PROGRAM} {place} "$@"\n')
    to.chmod(0o755)
    return str(to)


@contextmanager
def template(modules: Sequence[str]) -> Generator[str]:
    """Start a template that loads `modules`; gives the program to be started in the place of Python."""
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        place = Path(folder, "socket")
        process = subprocess.Popen([sys.executable, __file__, place, *modules], stdin=subprocess.PIPE)
        try:
            yield python_of(place, Path(folder, "python"))
        finally:
            process.communicate()  # closes its standard input, which ends it


class Template:
    """Forks itself for each request that comes to a socket; a fork is killed when its client is gone."""

    def __init__(self, place: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place)
        self._listener.listen(64)
        self._clients: dict[int, socket.socket] = {}
        """By the fork's process id."""
        self._ended, self._signalled = socket.socketpair()
        """Readable when a fork has ended: Python writes each signal to the other end."""
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        self._selector = selectors.DefaultSelector()
        for what in (self._listener, self._ended, sys.stdin):
            self._selector.register(what, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork until standard input ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._fork()
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                elif key.fileobj is sys.stdin:
                    signal.set_wakeup_fd(-1)  # its socket is closed before the last fork has ended
                    return
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj, key.data)

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        head, given, _, _ = socket.recv_fds(client, 4, 64)
        with client.makefile("rb") as file:
            request = msgspec.json.decode(file.read(int.from_bytes(head, "big")), type=Request)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            for held in (client, self._listener, self._ended, self._signalled, *self._clients.values()):
                held.close()
            become(request, given)
        for descriptor in given:
            os.close(descriptor)
        self._selector.register(client, selectors.EVENT_READ, pid)
        self._clients[pid] = client

    def _hear(self, client: socket.socket, pid: int) -> None:
        """Hand a signal on; where the client was killed, kill its fork and what that has started."""
        number = b""
        with suppress(OSError):
            number = client.recv(1)
        with suppress(ProcessLookupError):
            if number:
                os.kill(pid, number[0])
            else:
                self._selector.unregister(client)
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid, client in [*self._clients.items()]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its parent would, by the number that is the client's here
            del self._clients[pid]
            with suppress(KeyError):
                self._selector.unregister(client)
            with suppress(OSError):
                client.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            client.close()


def become(request: Request, given: Sequence[int]) -> None:
    """Be the process that is requested, to its end; `given` are its descriptors, by other numbers."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    above = max(request.descriptors, default=2) + len(given) + 1
    moved = [_moved(descriptor, above) for descriptor in given]
    for number, descriptor in zip(request.descriptors, moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request.folder)
    before = {*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path(__file__).parent)}
    os.environ.clear()
    os.environ.update(request.environment)
    more = [folder for folder in request.environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [request.folder, *more, *(folder for folder in sys.path if folder not in before)]
    runs_tests = request.arguments[0] == "-u"
    if not runs_tests:  # tests fork processes, too, that look for their own parent
        os.register_at_fork(after_in_child=partial(setattr, os, "getppid", os.getppid))
        os.getppid = partial(parent_of, request.client)
        gc.unfreeze()
    code = 1
    try:
        run_line(request.arguments) if runs_tests else run(request.arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        for thread in threading.enumerate():  # as Python does at its end
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        if runs_tests:
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # no public function does this before `_exit`
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def parent_of(pid: int) -> int:
    """The parent of another process; 1 when that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1


def _moved(descriptor: int, above: int) -> int:
    """Another number for a descriptor, at which none of those that are wanted is."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def run_line(arguments: list[str]) -> None:
    """Run `-u -c CODE`, as a process of pytest-xdist is started."""
    for name in KNOWN_TO_PYTEST & sys.modules.keys():
        sys.modules[name].__doc__ = f"{sys.modules[name].__doc__ or ''} PYTEST_DONT_REWRITE"
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(arguments[2], vars(main))


def run(arguments: list[str]) -> None:
    """Run `-m MODULE`, or a script; a script of Ray's that would execute another script is followed by that one."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.modules.pop(arguments[1], None)  # as Python has it, where it is not imported before it runs
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    try:
        _run_script(arguments)
    except _WouldExecute as would:
        _run_script(would.words)


def _run_script(words: list[str]) -> None:
    def execute(_: str, args: list[str]) -> None:
        command = shlex.split(args[-1])  # exec PYTHON SCRIPT ARGUMENT...
        assert command[0] == "exec" and command[2].endswith(".py"), f"a fork cannot execute {args[-1]}"
        raise _WouldExecute(command[2:])

    system, os.execvp = os.execvp, execute
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        os.execvp = system


class _WouldExecute(BaseException):
    def __init__(self, words: list[str]) -> None:
        super().__init__(words)
        self.words = words


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal has been written to the selector's socket."""


def main(place: str, modules: Sequence[str]) -> None:
    """Load, and fork; what is requested meanwhile waits."""
    forking = Template(place)
    gc.disable()  # it would look at millions of objects of imports, and none of them ends
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()
    forking.serve()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
