"""Python as a test's process starts it: `forked_python.py SOCKET ARGUMENT...`; see `forks`.

Workers, learners and xdist's processes are requested of the template that listens at SOCKET; everything else is
executed as it stands.
Runs with `-S -E`, on the standard library alone.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

START_SECONDS = 60.0
MODULES = ("leyden.core.runner.workers.worker", "leyden.core.trainer.agents.learner_process")
XDIST = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""A process that runs tests, as execnet starts it."""
RAY = ("setup_worker.py", "default_worker.py")
"""The first prepares the environment of a worker of Ray's and executes the second, which is among its arguments."""


def is_requested(arguments: list[str]) -> bool:
    """Whether the template is to run this."""
    if arguments[0] == "-m":
        return arguments[1] in MODULES
    if arguments == XDIST:
        return True
    return arguments[0].endswith(RAY[0]) and any(word.endswith(RAY[1]) for word in arguments)


def descriptors() -> list[int]:
    """What was inherited, standard input, output and error first."""
    found: list[int] = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def request(place: str, arguments: list[str]) -> int:
    """Have a fork run `arguments`, and hand signals on to it; its exit code, or the signal that ended it, negated."""
    inherited = descriptors()
    order: dict[str, object] = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    order |= {"descriptors": inherited, "client": os.getpid()}
    content = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as template:
        connect(template, place)
        socket.send_fds(template, [len(content).to_bytes(4, "big")], inherited)
        template.sendall(content)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: template.send(bytes([number])))
        return int.from_bytes(template.recv(4) or b"\0\0\0\1", "big", signed=True)


def connect(template: socket.socket, place: str) -> None:
    """Connect to a template that may just be starting."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return template.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def main(place: str, arguments: list[str]) -> None:
    """Be the fork, as far as a parent sees it; or the program itself."""
    if not arguments or not is_requested(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    code = request(place, arguments)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


main(sys.argv[1], sys.argv[2:])
