"""`WarmProcesses`: processes that have imported their libraries before they begin, forked off a server per family."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from leyden.core.runner.workers.process import WorkerProcess
from leyden.core.runner.workers.spec import WorkerSpec

HERE = Path(__file__).parent
NO_TELEMETRY = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "ANONYMIZED_TELEMETRY": "false",
}


def environment() -> dict[str, str]:
    """What every process of the zoo finds in its environment, before the agent's own variables."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LEYDEN_TEST_PROCESS")
    found = {name: os.environ[name] for name in os.environ if name in kept or name.startswith("PYTEST_")}
    return {
        **found,
        **NO_TELEMETRY,
        "PYTHONPATH": str(HERE.parent),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "*",
    }


class Forked:
    """A forked process, with what `WorkerProcess` needs of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, stdin: "_Input | None", stdout: asyncio.StreamReader | None) -> None:
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Wait for its end."""
        return await asyncio.shield(self.ended)

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)


class WarmServer:
    """The server of one family, with or without Leyden."""

    def __init__(self, control: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        control.setblocking(False)
        self._control, self._process = control, process
        self._lock = asyncio.Lock()
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._children: dict[int, Forked] = {}
        self._ends: dict[int, int] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    def start(cls, modules: Sequence[str]) -> "WarmServer":
        """Start a server that imports `modules`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, str(HERE / "warm_server.py"), str(theirs.fileno()), *modules]
            return cls(ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment()))

    async def with_more(self, modules: Sequence[str]) -> "WarmServer":
        """Return a server that is forked off this one and imports `modules`, too; close it before this one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            await self._order({"what": "server", "modules": list(modules)}, [theirs.fileno()], None, None)
        return WarmServer(ours)

    async def fork(self, order: Mapping[str, Any], out: Any, err: Any) -> Forked:
        """Fork a process; `out` None: its standard input and output are pipes to this process."""
        if out is not None:
            with open(os.devnull) as nothing:
                return await self._order(order, [nothing.fileno(), out.fileno(), err.fileno()], None, None)
        (child_in, our_in), (our_out, child_out) = os.pipe(), os.pipe()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_out, "rb", 0))
        try:
            return await self._order(order, [child_in, child_out, err.fileno()], _Input(our_in), reader)
        finally:
            os.close(child_in)
            os.close(child_out)

    async def _order(self, order: Mapping[str, Any], streams: list[int], stdin: "_Input | None", stdout: Any) -> Forked:
        async with self._lock:
            socket.send_fds(self._control, [json.dumps(order).encode()], streams)
            pid = await self._pids.get()
        forked = Forked(pid, stdin, stdout)
        self._children[pid] = forked
        if pid in self._ends:
            self._end(pid, self._ends.pop(pid))
        return forked

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._control, 4096):
            news = json.loads(data)
            if "ended" in news:
                self._end(news["pid"], news["ended"])
            else:
                self._pids.put_nowait(news["pid"])

    def _end(self, pid: int, code: int) -> None:
        forked = self._children.pop(pid, None)
        if forked is None:
            self._ends[pid] = code
        elif not forked.ended.done():
            forked.ended.set_result(code)

    async def close(self) -> None:
        """End the server, and with it whatever it has forked that still runs."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        for forked in list(self._children.values()):
            with contextlib.suppress(ProcessLookupError):  # a server has no group of its own, and ends with its socket
                os.killpg(forked.pid, signal.SIGKILL)
        self._control.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)


class _Input:
    """The standard input of a forked process, with what `WorkerProcess` needs of `asyncio.StreamWriter`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write at once: what a worker is sent is shorter than a pipe is."""
        os.write(self._descriptor, data)

    async def drain(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Close the pipe, once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    async def wait_closed(self) -> None:
        """A pipe is closed at once."""


class Home(NamedTuple):
    """Where the workers of one gateway live."""

    server: WarmServer
    environment: Mapping[str, str]
    folder: Path


class WarmWorker(WorkerProcess):
    """A worker process that is forked off a server in place of a Python that starts from nothing."""

    homes: ClassVar[dict[str, Home]] = {}
    """By the signing key of the gateway that they work for."""

    @classmethod
    async def start(cls, spec: WorkerSpec, output: int | None = None) -> "WarmWorker":
        """Fork it and wait until it claims rollouts; None: what it prints is lost."""
        home = cls.homes[spec.key]
        order = {"what": "worker", "folder": str(home.folder), "environment": dict(home.environment)}
        with open(os.devnull if output is None else output, "w", closefd=output is None) as printed:
            process: Any = await home.server.fork(order, None, printed)
        worker = cls(spec, process)
        try:
            await worker._begin()
        except BaseException:
            await worker.kill()
            raise
        return worker
