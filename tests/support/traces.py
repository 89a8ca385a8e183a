"""What a test file can leave behind in its process and on its machine, as pictures that can be compared.

A picture maps what identifies a thing (a thread's number, a descriptor and what it points to) to words for a reader.
"""

import asyncio
import gc
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

Key = tuple[Hashable, ...]
Picture = dict[Key, str]

WORKER = "LEYDEN_TEST_PROCESS"
"""Environment variable that names the process which runs the tests; every program that they start inherits it."""
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""Environment variable that names the folder in which pytest makes each test's `tmp_path`."""

OUR_OWN = (f"{Path(__file__).parents[2]}{os.sep}", sys.prefix)
"""Folders of the project and of its environment."""

KEPT_THREADS = (
    "pytest_timeout",  # pytest's and xdist's own
    "execnet",
    "tqdm_monitor",  # tqdm starts one at its first bar and ends it with the process
    "CrewAI",  # the event bus of CrewAI
    "agents.tracing.processors.BatchTraceProcessor",  # the OpenAI Agents SDK's exporter
)
"""Parts of the names of threads, or of their functions, that a library starts once and keeps."""
KEPT_PROCESSES = (
    "from multiprocessing.resource_tracker import main",  # one a process, ended by Python itself
    "from multiprocessing.forkserver import main",
    "tests/support/forks.py",  # started by the latter, and ends with it
)
"""Parts of command lines of the same kind."""
KEPT_FILES = (
    "torchinductor_",  # torch's cache
    "pymp-",  # of the fork server
    "crewai:",  # its lock, one for each store
    "leyden-pg-programs-",  # see leyden.core.testing.servers.postgres_server
    "leyden-forks-",  # of the template that is among the processes above
)
"""Beginnings of the names of temporary files of the same kind."""


def threads() -> Picture:
    """Python's threads, but this one.

    One that Python has not started (a library's, or `_thread`'s) stays in Python's list after its end; it has no frame.
    """
    running = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # there is no public way
    found = {
        ("thread", thread.ident): f"thread {thread.name!r}{_target_of(thread)}"
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and thread.ident in running
    }
    return {key: words for key, words in found.items() if not any(part in words for part in KEPT_THREADS)}


def _target_of(thread: threading.Thread) -> str:
    target = vars(thread).get("_target")
    name = getattr(target, "__qualname__", None)
    return f" ({target.__module__}.{name})" if name else ""


def processes() -> Picture:
    """Children of this process, theirs, and what was started from here and has lost its parent."""
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _was_started_here(process):
            found[process.pid] = process
    pictures = (_picture_of(process) for process in found.values())
    return {key: words for key, words in pictures if words and not any(part in words for part in KEPT_PROCESSES)}


def _was_started_here(process: psutil.Process) -> bool:
    wanted = os.environ.get(WORKER, "")
    try:
        if sys.platform == "linux":  # of every process of the machine, after every file: psutil would parse each
            return f"\0{WORKER}={wanted}\0".encode() in b"\0" + Path(f"/proc/{process.pid}/environ").read_bytes()
        return process.environ().get(WORKER) == wanted
    except (psutil.Error, OSError):
        return False


def _picture_of(process: psutil.Process) -> tuple[Key, str]:
    try:
        dead = process.status() == psutil.STATUS_ZOMBIE
        words = "has ended, and was not waited for" if dead else " ".join(process.cmdline())[:300]
        return ("process", process.pid, process.create_time()), f"process {process.pid}: {words}"
    except psutil.Error:  # it has gone meanwhile
        return ("process", process.pid), ""


def end_processes(picture: Picture) -> None:
    """Kill the processes of a picture, so that nothing goes on using the machine."""
    for kind, number, *_ in picture:
        if kind == "process" and isinstance(number, int):
            with suppress(psutil.Error):
                psutil.Process(number).kill()


def descriptors() -> Picture:
    """Open files, sockets and pipes."""
    found: Picture = {}
    kept = _kept_by_multiprocessing()
    for name in os.listdir("/dev/fd"):
        try:
            where = os.readlink(f"/dev/fd/{name}") if sys.platform == "linux" else str(os.fstat(int(name)).st_ino)
        except OSError:  # the descriptor of the listing itself
            continue
        is_a_librarys = where.startswith(sys.prefix)  # libraries keep files of theirs open, like fonts
        if int(name) not in kept and not is_a_librarys:
            found["descriptor", int(name), where] = f"descriptor {name}: {_described(int(name), where)}"
    return found


def _kept_by_multiprocessing() -> set[int]:
    """The pipes to the two helper processes of Python's own that a process keeps once it has started them."""
    helpers = (("resource_tracker", "_resource_tracker", "_fd"), ("forkserver", "_forkserver", "_forkserver_alive_fd"))
    numbers: list[int | None] = []
    for module, helper, attribute in helpers:  # private: there is no other way to tell these pipes from a leak
        loaded = sys.modules.get(f"multiprocessing.{module}")
        numbers.append(getattr(getattr(loaded, helper, None), attribute, None))
    return {number for number in numbers if number is not None}


def _described(number: int, where: str) -> str:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return where
        with socket.socket(fileno=os.dup(number)) as copy:
            return f"socket {copy.getsockname()}{_peer_of(copy)}"
    except OSError:
        return where


def _peer_of(connection: socket.socket) -> str:
    try:
        return f" to {connection.getpeername()}"
    except OSError:
        return ""


def temporary_files() -> Picture:
    """What lies in this process's folder for temporary files."""
    names = [path.name for path in Path(tempfile.gettempdir()).iterdir()]
    return {("file", name): f"temporary file {name}" for name in names if not name.startswith(KEPT_FILES)}


def event_loops() -> Picture:
    """Event loops that are neither closed nor running, among what the garbage collector looks at."""
    return {
        ("loop", id(found)): f"open event loop {found!r}"
        for found in gc.get_objects()
        if issubclass(type(found), asyncio.AbstractEventLoop) and not found.is_closed() and not found.is_running()
    }


def loaded_modules() -> Picture:
    """Modules of files in temporary folders, as agents of tests are; the checkout itself may lie in one."""
    folders = tuple({os.environ.get(TEMPORARY, tempfile.gettempdir()), tempfile.gettempdir()})
    return {
        ("module", name): f"module {name} of {where} in sys.modules"
        for name, module in list(sys.modules.items())
        if (where := str(getattr(module, "__file__", None))).startswith(folders) and not where.startswith(OUR_OWN)
    }


LOOKS: Iterable[Callable[[], Picture]] = (
    threads,
    processes,
    descriptors,
    temporary_files,
    event_loops,
    loaded_modules,
)


def alive() -> Picture:
    """All of it, in one picture."""
    return {key: words for look in LOOKS for key, words in look().items()}
