"""A process that has imported a family's libraries, and forks a process off for each run.

    python warm_server.py DESCRIPTOR MODULE...

An order may be for such a server itself, which imports more. Orders come over the socket DESCRIPTOR: JSON, with the new
process's standard input, output and error beside it. It answers each with `{"pid": ...}`, and sends
`{"pid": ..., "ended": ...}` with the exit code when that process has ended.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from typing import Any

LARGEST = 1 << 20


def serve(control: socket.socket) -> None:
    """Fork for each order, until the other side is gone."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control, read], [], [])
        if read in ready:
            os.read(read, 4096)
            _reap(control)
        if control in ready:
            data, streams, _, _ = socket.recv_fds(control, LARGEST, 3)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (read, write, control.fileno()):
                    os.close(descriptor)
                _become(json.loads(data), streams)
            for descriptor in streams:
                os.close(descriptor)
            control.send(json.dumps({"pid": pid}).encode())


def _nothing(number: int, frame: object) -> None:
    """A child has ended: the byte that the signal writes into the pipe says so."""


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(json.dumps({"pid": pid, "ended": os.waitstatus_to_exitcode(status)}).encode())


def _become(order: dict[str, Any], streams: list[int]) -> None:
    """Be the process that was ordered; never returns."""
    code = 1
    try:
        if order["what"] == "server":
            _import(order["modules"])
            serve(socket.socket(fileno=streams[0]))
            os._exit(0)
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["agent.py"]
        gc.unfreeze()
        if order["what"] == "worker":
            from leyden.core.runner.workers import worker

            sys.modules["__main__"] = worker
            worker.main()
        else:
            from zoo_harness import author

            author.run(order)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for thread in threading.enumerate():  # as Python does at its end
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join(2)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _import(modules: list[str]) -> None:
    """Import what the processes to come need, and have the collector leave it alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _import(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))
