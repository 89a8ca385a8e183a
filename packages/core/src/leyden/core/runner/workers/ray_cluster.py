"""Ray cluster for the duration of a block: an existing one, or one on this machine that ends with the block.

Ray is imported only when a cluster is requested.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from leyden.core.errors import LeydenError, UsageError, first_line
from leyden.core.runner.commands.command import OutputTail, run_process
from leyden.core.runner.commands.process import CommandProcess, Exit, Streams

START_SECONDS = 120.0
"""Longest wait for a new cluster to start."""
HEADS = 3
"""Number of tries to start a head. Ray ends its node when it is not up within half a minute."""
REACH_SECONDS = 10.0
OBJECT_BYTES = 100 << 20
"""Size of Ray's shared memory on this machine. Only short messages pass through it."""
_PREFIX = "leyden-ray-"
_LOCKED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Settings of a new cluster. Ray listens on all addresses of this machine, so clients need this process's token."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
"""Settings that turn off Ray's telemetry and warnings."""
_NONE_IN_RESERVE = {"RAY_prestart_worker_first_driver": "0"}
"""Ray otherwise starts one process for each processor when a driver connects.

With this setting it starts processes only on use.
"""

logger = logging.getLogger(__name__)


class HeadEnded(LeydenError):
    """A cluster that this process started ended before it was up."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to."""

    ray: Any
    """The `ray` package, which holds the connection as module state."""
    is_ours: bool
    """Whether this process started the cluster, which then ends with the block."""

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return Ray's descriptions of the live nodes, with `NodeID`, `NodeManagerAddress` and `Resources`."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    @property
    def this_node(self) -> str:
        """Ray's id of this process's node."""
        return self.ray.get_runtime_context().get_node_id()

    @property
    def own_address(self) -> str:
        """Address of this machine for the other nodes."""
        return self.ray.util.get_node_ip_address()


def import_ray() -> Any:
    """Import and return `ray`. Raises UsageError where it is not installed."""
    os.environ.update(_QUIET)
    try:
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise UsageError("runners on Ray need Ray: pip install 'leyden-core[ray]'") from error
    logging.getLogger("ray").setLevel(logging.ERROR)  # Ray warns when it is joined outside the main thread
    return ray


@asynccontextmanager
async def ray_cluster(address: str | None, cpus: int = 0) -> AsyncGenerator[Cluster]:
    """Join the cluster at `address` (HOST:PORT, or `auto` for this machine's own). None starts a new one.

    An existing connection of this process is used as it is. A new cluster offers at least `cpus` processors, and
    nothing of it outlives this process. Raises UsageError where Ray is missing or no cluster answers at `address`.
    """
    if address is None:
        _lock()
    ray = import_ray()
    if ray.is_initialized():
        yield Cluster(ray, is_ours=False)
        return
    if address is not None:
        if address != "auto" and not await _listens(address):  # Ray would try for minutes
            raise UsageError(f"no Ray cluster can be joined at {address}: no process listens there")
        await asyncio.to_thread(_join, ray, address)
        try:
            yield Cluster(ray, is_ours=False)
        finally:
            await asyncio.to_thread(ray.shutdown)
        return
    async with await _joined_own(ray, cpus):
        try:
            yield Cluster(ray, is_ours=True)
        finally:
            await asyncio.to_thread(ray.shutdown)


async def _joined_own(ray: Any, cpus: int) -> AsyncExitStack:
    """Start a cluster and join it.

    Closing the returned stack ends it. A head that fails on a busy machine is retried.
    """
    heads_left = HEADS
    while True:
        async with AsyncExitStack() as stack:
            head = await stack.enter_async_context(_own_head(cpus))
            try:
                await _join_own(ray, *head)
            except HeadEnded as error:
                heads_left -= 1
                if not heads_left:
                    raise
                logger.warning("Ray is restarted: %s", error)
            else:
                return stack.pop_all()


def _lock() -> None:
    """Require this process's token from clients of its clusters. Ray reads the setting once, at its import."""
    if "ray" not in sys.modules:
        os.environ.update(_LOCKED)
    elif os.environ.get("RAY_AUTH_MODE") != "token":
        logger.warning(
            "Ray was imported before Leyden could protect its ports: any process that can connect to them can use the "
            "Ray cluster"
        )


def _join(ray: Any, address: str) -> None:
    breakpoint_hook = os.environ.get("PYTHONBREAKPOINT")
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(
            f"no Ray cluster can be joined at {address}: {reason}; start one with: ray start --head"
        ) from None
    finally:  # remove Ray's own hook, which agents in child processes would inherit
        os.environ.pop("PYTHONBREAKPOINT", None)
        if breakpoint_hook is not None:
            os.environ["PYTHONBREAKPOINT"] = breakpoint_hook
    with contextlib.suppress(ImportError, AttributeError):  # Ray would print messages between a run's JSON lines
        printing: Any = import_module("ray._private.ray_logging")
        printing.global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


@asynccontextmanager
async def _own_head(cpus: int) -> "AsyncGenerator[tuple[str, asyncio.Task[Exit], OutputTail]]":
    """Run Ray's head in the block. Yields its address, its task and its output.

    A supervisor process ends the head when this process is killed.
    """
    _remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    port, ports = _free_ports()
    output = OutputTail()
    environment = {**os.environ, **_QUIET, **_NONE_IN_RESERVE}
    streams = Streams(stdin=b"", stdout=output, stderr=output)
    command = [*_HEAD, f"--port={port}", *ports, f"--temp-dir={folder}", f"--num-cpus={max(cpus, os.cpu_count() or 1)}"]
    head = asyncio.create_task(run_process(CommandProcess(command, environment, streams)), name="leyden ray head")
    try:
        yield f"127.0.0.1:{port}", head, output
    finally:
        head.cancel()
        await asyncio.gather(head, return_exceptions=True)
        shutil.rmtree(folder, ignore_errors=True)


_HEAD = (
    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1"),
    *(
        "--include-dashboard=false",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--object-store-memory={OBJECT_BYTES}",
    ),
)


def _free_ports() -> tuple[int, list[str]]:
    """Return a free port for the cluster, and options that fix the ports of Ray's agents.

    Ray's agents otherwise report their ports through files. On a busy machine that may take more than fifteen seconds,
    and the node gives up.
    """
    names = (
        *("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "runtime-env-agent-port", "metrics-export-port"),
        *("ray-client-server-port", "dashboard-port"),
    )
    probes = [socket.socket() for _ in range(len(names) + 1)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        port, *others = [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
    return port, [f"--{name}={number}" for name, number in zip(names, others, strict=True)]


async def _join_own(ray: Any, address: str, head: "asyncio.Task[Exit]", output: OutputTail) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        if head.done():
            raise HeadEnded(f"Ray's head {head.result()}: {_last_line(output)}")
        if await _listens(address):
            try:
                await asyncio.to_thread(_join, ray, address)
            except UsageError:
                if time.monotonic() > give_up:
                    raise LeydenError(f"Ray did not start within {START_SECONDS:.0f} s: {_last_line(output)}") from None
            else:
                return
        elif time.monotonic() > give_up:
            raise LeydenError(f"Ray did not start within {START_SECONDS:.0f} s: {_last_line(output)}")
        await asyncio.sleep(0.2)


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), REACH_SECONDS)
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    await writer.wait_closed()
    return True


def _last_line(output: OutputTail) -> str:
    return next((line.strip() for line in reversed(output.text().splitlines()) if line.strip()), "it printed nothing")


def _remove_left_behind() -> None:
    """Remove the folders of clusters whose owner was killed. Their processes have ended with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
