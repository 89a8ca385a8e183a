"""Whole runs with VERL on a CPU, for tests: their Ray cluster and their processes, and how these are killed."""

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from verl_cpu.training import VARIABLES

from leyden.core.data.rollout import FINISHED_ROLLOUT
from leyden.core.store.open import open_store
from leyden.core.testing.servers.ports import free_port
from scale.watching import below

MISSING = [name for name in ("verl", "ray", "transfer_queue") if importlib.util.find_spec(name) is None]
ROOT = Path(__file__).parents[3]
STEPS = 3
ACTOR, WORKER, REPLICA = "ray::RunnerHost", "leyden.core.runner.workers.worker", "ray::CpuServer"
"""Marks of processes: an actor of the runners on Ray, an agent worker, a replica."""
MOST = 12
"""Of the sixteen rollouts of a step."""


def variables() -> dict[str, str]:
    """Of every process: VERL's way to the CPU, and no cluster of somebody else's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(ROOT / "tests/support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Ray gives its agent 15 seconds to start, which compiling all of it again takes on a busy machine.
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "COLUMNS": "200"}
    # Ray otherwise starts a process for each logical CPU whenever a run joins, and most of them never do anything.
    none_in_reserve = {"RAY_prestart_worker_first_driver": "0"}
    return {**ours, **VARIABLES, **quiet, **none_in_reserve, "PYTHONPATH": path}


@dataclass(frozen=True, slots=True)
class Head:
    """A Ray cluster: its address, and the process that all others of it are below."""

    address: str
    pid: int


@contextmanager
def ray_head(log: Path, environment: Mapping[str, str]) -> Generator[Head]:
    """A Ray cluster with four logical GPUs, which are CPUs, in the block."""
    folder = Path("/tmp") / f"leyden-ray-{os.getpid()}"  # sockets have short paths
    head, port = _begun(log, environment, folder)
    try:
        if not _has_started(head, log):  # Ray gives itself 30 seconds, which a busy machine may take
            _end(head, folder)
            head, port = _begun(log, environment, folder)
            assert _has_started(head, log), log.read_text()
        yield Head(f"127.0.0.1:{port}", head.pid)
    finally:
        _end(head, folder)


def _begun(log: Path, environment: Mapping[str, str], folder: Path) -> tuple["subprocess.Popen[bytes]", int]:
    port = free_port()
    given = (
        "dashboard-agent-grpc-port",
        "dashboard-agent-listen-port",
        "runtime-env-agent-port",
        "metrics-export-port",
    )
    command = [sys.executable, "-m", "verl_cpu.forked_workers", "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=16", "--num-gpus=4", "--include-dashboard=false", f"--temp-dir={folder}"]
    command += [f"--{name}={free_port()}" for name in given]
    with log.open("wb") as output:
        head = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    return head, port


def _has_started(head: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Wait until the cluster is there, or has failed to begin."""
    deadline = time.monotonic() + 240
    while "Ray runtime started" not in log.read_text():
        if head.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _end(head: "subprocess.Popen[bytes]", folder: Path) -> None:
    head.terminate()
    head.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


Running = subprocess.Popen[str]


class Runs:
    """Runs on a cluster, each a process of its own; `end` leaves none of them."""

    def __init__(self, head: Head, environment: Mapping[str, str]) -> None:
        self.head = head
        self._environment = environment
        self._started: list[Running] = []

    def train(self, runs: Path, name: str, agent: str, *words: str) -> Running:
        """Begin or go on with a run of `STEPS` steps, as `verl_cpu.training` is told."""
        return self.start("verl_cpu.training", self.head.address, str(runs), name, agent, str(STEPS), *words)

    def start(self, *command: str, **variables: str) -> Running:
        """Start `python -m COMMAND` in the repository's root, with these further variables."""
        self._started.append(
            Running(
                [sys.executable, "-m", *command],
                env={**self._environment, **variables},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self._started[-1]

    def end(self) -> None:
        """Kill what runs."""
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def finished(process: Running) -> str:
    """Wait until a run has ended well; what it said."""
    output, _ = process.communicate()
    assert process.returncode == 0, output[-4000:]
    return output


def failed(process: Running, code: int = 1) -> str:
    """Wait until a run has ended badly; what it said."""
    output, _ = process.communicate()
    assert process.returncode == code, output[-4000:]
    return output


def wait_for_middle(run: Path, step: int, process: Running) -> None:
    """Wait until a run is in the middle of a step: some of its rollouts have finished, and others run."""
    asyncio.run(_until(run, f"train-s{step}-", process, lambda running, _, done: running > 0 and done > 0))


def wait_for_beginning(run: Path, step: int, process: Running, *, running: int) -> None:
    """Wait until so many of a step's rollouts run, and `MOST` have not ended: whatever is killed then is missed."""
    asyncio.run(_until(run, f"train-s{step}-", process, lambda now, left, _: now >= running and left >= MOST))


async def _until(run: Path, named: str, process: Running, holds: Callable[[int, int, int], bool]) -> None:
    """Wait until `holds` of how many rollouts of a name run, have not ended, and have succeeded."""
    while not (run / "loop").exists():  # by then the store is there
        await _still(process)
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        while True:
            own = [one.status for one in await store.query_rollouts() if one.rollout_id.startswith(named)]
            left = sum(status not in FINISHED_ROLLOUT for status in own)
            if holds(own.count("running"), left, own.count("succeeded")):
                return
            await _still(process)
    finally:
        await store.close()


async def _still(process: Running) -> None:
    assert process.poll() is None, process.communicate()[0][-4000:]
    await asyncio.sleep(0.05)


def named_below(pid: int, mark: str) -> list[int]:
    """The processes that `pid`, or one that it started, has started, whose command line holds `mark`."""
    return [one for one in below(pid) if mark in _command_line(one)]


def kill_below(pid: int, mark: str, *, last: bool = False) -> None:
    """Kill the first such process outright, or the one that was started last."""
    found = named_below(pid, mark)
    os.kill(max(found) if last else found[0], signal.SIGKILL)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended
        return ""
