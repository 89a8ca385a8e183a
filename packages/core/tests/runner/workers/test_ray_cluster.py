"""How a cluster is found, and what is left of one of our own. Ray itself is in `test_ray_pool.py`."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from leyden.core.errors import UsageError
from leyden.core.runner.workers import ray_cluster

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
OWN = """
import asyncio
from leyden.core.runner.workers.ray_cluster import ray_cluster

async def main():
    async with ray_cluster(None) as cluster:
        print(len(cluster.nodes()), flush=True)
        await asyncio.sleep(100)

asyncio.run(main())
"""


async def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"need Ray: pip install 'leyden-core\[ray\]'"):
        async with ray_cluster.ray_cluster("auto"):
            pytest.fail("there is no Ray")


@NEEDS_RAY
@pytest.mark.parametrize("address", ["127.0.0.1:9", "somewhere"])
async def test_a_cluster_that_nobody_runs_is_refused_at_once(address: str) -> None:
    with pytest.raises(UsageError, match=f"no Ray cluster can be joined at {address}: no process listens there"):
        async with ray_cluster.ray_cluster(address):
            pytest.fail("there is no cluster")


def test_what_a_killed_run_left_on_the_disk_goes_and_what_lives_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for owner in (ended.pid, os.getpid()):
        (tmp_path / f"leyden-ray-{owner}-x").mkdir()
    (tmp_path / "leyden-ray-notes").mkdir()
    ray_cluster._remove_left_behind()  # pyright: ignore[reportPrivateUsage]  # a whole cluster would have to be killed
    assert {folder.name for folder in tmp_path.iterdir()} == {f"leyden-ray-{os.getpid()}-x", "leyden-ray-notes"}


@NEEDS_RAY
@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_of_a_cluster_outlives_the_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWN], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        nodes = driver.stdout.readline()
        mark = f"leyden-ray-{driver.pid}-"
        running = mentioning(mark)
        driver.send_signal(signal.SIGKILL)
    assert nodes == b"1\n"
    assert len(running) > 3
    give_up = time.monotonic() + 30
    while left := mentioning(mark):
        assert time.monotonic() < give_up, left
        time.sleep(0.1)
    ray_cluster._remove_left_behind()  # pyright: ignore[reportPrivateUsage]  # as the next cluster does
    assert not list(Path(tempfile.gettempdir()).glob(f"{mark}*"))


def mentioning(mark: str) -> list[str]:
    """Command lines of living processes that have `mark` in them."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if mark in line]
