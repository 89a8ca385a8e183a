"""Stopped by Ctrl-C or killed outright, a run goes on: every planned step is taken, and none twice."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed_runs import kill, recorded, trained_steps, wait_for_step
from warm_process import Running

from leyden.core.data.rollout import AttemptedRollout, Rollout
from leyden.core.store.open import open_store

STEPS = 5
LONG = 40
"""So many steps that a run is not done before it is told to stop."""

Start = Callable[..., Running]
Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.timeout(600)]


def assert_finished(run: Path, steps: int = STEPS) -> None:
    """Every step taken once, and the report counts what the store holds: whole batches, each rollout once.

    There may be a batch more than steps: one without a lesson (no group with spread) is followed by the next tasks.
    """
    assert trained_steps(run) == list(range(1, steps + 1))
    report = json.loads((run / "report.json").read_text())
    rollouts = asyncio.run(stored_rollouts(run))
    assert report["steps"] == steps
    assert report["rollouts"] == len(rollouts) >= steps * 16
    assert len(rollouts) % 16 == 0
    assert {rollout.status for rollout in rollouts} == {"succeeded"}
    assert asyncio.run(recorded(run)) == ("succeeded", list(range(1, steps + 1)), list(range(steps + 1)))


async def stored_rollouts(run: Path) -> list[Rollout]:
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        return [*(await store.query_rollouts())]
    finally:
        await store.close()


async def finished_attempts(run: Path) -> dict[str, str]:
    """Of every rollout that has ended: the attempt that ended it."""
    return {
        rollout.rollout_id: rollout.attempt.attempt_id
        for rollout in await stored_rollouts(run)
        if rollout.status == "succeeded" and isinstance(rollout, AttemptedRollout)
    }


def leyden_processes(run: Path) -> list[int]:
    """Processes whose command line or log file belongs to this run's agents."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                files = [os.readlink(f) for f in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(str(run) in file for file in files):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_or_sigterm_stops_cleanly_and_says_how_to_go_on(
    train_arguments: Callable[..., list[str]],
    start: Start,
    leyden: Leyden,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
) -> None:
    run = tmp_path / "stopped"
    process = start(*train_arguments(tmp_path, "stopped", "--steps", str(LONG)))
    wait_for_step(run, 2, process)
    began = time.monotonic()
    process.send_signal(number)
    stopped = process.ended(60)
    assert time.monotonic() - began < 20
    assert stopped.returncode == code
    said = stopped.stderr
    assert "Traceback" not in said
    command = re.search(r"continue with: leyden (.*)", said)
    assert command is not None, said
    taken = len(trained_steps(run))
    assert taken < LONG
    assert asyncio.run(recorded(run))[0] == "stopped"
    assert not leyden_processes(run)
    done = leyden(*command[1].split(), "--steps", str(taken + 2))
    assert done.returncode == 0, done.stderr
    assert_finished(run, taken + 2)


def test_a_killed_run_goes_on_and_runs_no_finished_rollout_again(
    train_arguments: Callable[..., list[str]], start: Start, leyden: Leyden, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    process = start(*train_arguments(tmp_path, "killed", "--steps", str(STEPS)))
    wait_for_step(run, 2, process)
    kill(process)
    deadline = time.monotonic() + 200
    while leyden_processes(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not leyden_processes(run), "the agents outlived the process they work for"
    finished = asyncio.run(finished_attempts(run))
    assert len(finished) >= 2 * 16
    assert asyncio.run(recorded(run))[0] == "running", "nobody was left to say otherwise"
    done = leyden("train", "--resume", "killed", "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert_finished(run)
    assert finished.items() <= asyncio.run(finished_attempts(run)).items()
    again = leyden("train", "--resume", "killed", "--runs", str(tmp_path), "--quiet")
    assert again.returncode == 0, again.stderr
    assert_finished(run)
