"""Small real runs at every pace: each group learned from once, versions as recorded, bounds held, also over a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from check_record import calls_recorded_wrongly, engine_log, largest_difference, read_record
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "examples/calculator_langgraph/policy"
STEPS = 3
LOOPS = {"one_off": ("loop=one_off", 1), "async": ("loop=async", 2)}
"""How each is asked for, and its bound."""

Arguments = Callable[..., list[str]]
Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.timeout(300)


def step_lines(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1])
    return [line for line in lines if "staleness_max" in line]


async def ended_by(run: Path) -> dict[str, tuple[str, str]]:
    """Of every training rollout in the store: its status, and the attempt that ended it."""
    store = await open_store(f"sqlite:///{run / 'store.db'}", clock=lambda: 0.0)
    try:
        rollouts = [r for r in await store.query_rollouts() if isinstance(r, AttemptedRollout) and r.mode == "train"]
        return {rollout.rollout_id: (rollout.status, rollout.attempt.attempt_id) for rollout in rollouts}
    finally:
        await store.close()


async def assert_each_group_learned_from_once(run: Path, steps: int, bound: int) -> None:
    """All that the store holds was collected, in whole batches, once; and none was older than the bound."""
    lines, rollouts = step_lines(run), await ended_by(run)
    report = json.loads((run / "report.json").read_text())
    assert [line["step"] for line in lines] == [*range(1, steps + 1)]
    assert {status for status, _ in rollouts.values()} == {"succeeded"}
    assert report["rollouts"] == len(rollouts)
    assert len(rollouts) % 16 == 0
    assert sum(line["rollouts"] for line in lines) <= len(rollouts), "a batch without a lesson is no step"
    groups = {rollout.rsplit("-", 1)[0] for rollout in rollouts}
    assert len(groups) * 4 == len(rollouts)
    assert report["tokens_generated"] >= report["tokens_trained"] == sum(line["tokens_trained"] for line in lines)
    assert max(line["staleness_max"] for line in lines) <= bound
    assert sum(line["transitions_trained"] for line in lines) == report["transitions"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_what_a_loop_learns_from_is_what_the_recorded_versions_drew(
    loop: str, train_arguments: Arguments, leyden: Leyden, tmp_path: Path
) -> None:
    how, bound = LOOPS[loop]
    more = ("--steps", str(STEPS), "--set", how, "--set", "correction=truncated", "--engine-log", "--no-check")
    done = leyden(*train_arguments(tmp_path, loop, *more, "--keep-checkpoints", "9"))
    assert done.returncode == 0, done.stderr
    run = tmp_path / loop
    await assert_each_group_learned_from_once(run, STEPS, bound)
    lines, record = step_lines(run), await read_record(run)
    assert calls_recorded_wrongly(record, engine_log(run)) == []
    worst, versions = largest_difference(run, POLICY, record.transitions)
    assert worst < 1e-4
    assert versions <= set(range(STEPS))
    assert lines[0]["staleness_max"] == 0
    if loop == "one_off":
        assert all(line["mixed_version_share"] == 0 for line in lines)
        begun = {name.rsplit("-", 2)[0] for name in await ended_by(run)}
        assert {"train-v0-b0", "train-v0-b1"} <= begun, "the second batch is drawn by the weights of the first"
        assert f"v{STEPS - 1}" not in {name.split("-")[1] for name in begun}, "or no batch is one ahead"
    for line in lines:
        assert line["seconds_trainer_idle"] >= 0
        assert 0 <= line["seconds_engine_idle"] <= line["seconds"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_killed_run_finishes_what_was_in_flight_and_learns_from_nothing_twice(
    loop: str, train_arguments: Arguments, leyden: Leyden, tmp_path: Path
) -> None:
    how, bound = LOOPS[loop]
    run = tmp_path / loop
    kill_after_step(run, 2, train_arguments(tmp_path, loop, "--steps", str(STEPS), "--set", how, "--no-check"))
    before = {name: ended for name, ended in (await ended_by(run)).items() if ended[0] == "succeeded"}
    assert len(before) >= 2 * 16
    done = leyden("train", "--resume", loop, "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    await assert_each_group_learned_from_once(run, STEPS, bound)
    assert before.items() <= (await ended_by(run)).items(), "a finished rollout was run again"


def kill_after_step(run: Path, step: int, arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leyden.core.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(step_lines(run)) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
