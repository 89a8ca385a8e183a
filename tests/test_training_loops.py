"""Small real runs at every pace: each group learned from once, versions as recorded, bounds held, also over a kill."""

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import kill, wait_for_step
from warm_process import Running

from check_record import calls_recorded_wrongly, engine_log, largest_difference, read_record
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "examples/calculator_langgraph/policy"
STEPS = 3
BOUNDS = {"one_off": 1, "async": 2}
SETTINGS = {
    "one_off": ["--set", "loop=one_off", "--deterministic"],
    "async": ["--set", "loop=async", "--set", "correction=truncated"],
}

Arguments = Callable[..., list[str]]
Start = Callable[..., Running]
Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.timeout(600)]


def step_lines(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1])
    return [line for line in lines if "staleness_max" in line]


log = logging.getLogger("tests.training_loops")


async def ended_by(run: Path) -> dict[str, tuple[str, str]]:
    """Of every training rollout in the store: its status, and the attempt that ended it."""
    store = await open_store(f"sqlite:///{run / 'store.db'}", clock=lambda: 0.0)
    try:
        rollouts = [r for r in await store.query_rollouts() if isinstance(r, AttemptedRollout) and r.mode == "train"]
        for rollout in rollouts:
            if rollout.status == "failed":
                log.error("%s failed: %s", rollout.rollout_id, rollout.attempt)  # pytest shows it where the test fails
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


@pytest.fixture(scope="module")
def undisturbed(
    train_arguments: Arguments, leyden: Leyden, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The folder of a finished run at a pace, with the engine's own log and every checkpoint."""
    runs = tmp_path_factory.mktemp("runs")

    def folder(loop: str) -> Path:
        if not (runs / loop).exists():
            more = [*("--steps", str(STEPS), "--engine-log", "--keep-checkpoints", "9", "--no-check"), *SETTINGS[loop]]
            done = leyden(*train_arguments(runs, loop, *more))
            assert done.returncode == 0, done.stderr
        return runs / loop

    return folder


@pytest.mark.parametrize("loop", BOUNDS)
async def test_what_a_loop_learns_from_is_what_the_recorded_versions_drew(
    loop: str, undisturbed: Callable[[str], Path]
) -> None:
    run = undisturbed(loop)
    await assert_each_group_learned_from_once(run, STEPS, BOUNDS[loop])
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


@pytest.mark.parametrize("loop", BOUNDS)
async def test_a_killed_run_finishes_what_was_in_flight_and_learns_from_nothing_twice(
    loop: str,
    train_arguments: Arguments,
    start: Start,
    leyden: Leyden,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    run = tmp_path / loop
    process = start(*train_arguments(tmp_path, loop, "--steps", str(STEPS), "--no-check", *SETTINGS[loop]))
    wait_for_step(run, 2, process)
    kill(process)
    before = {name: ended for name, ended in (await ended_by(run)).items() if ended[0] == "succeeded"}
    assert len(before) >= 2 * 16
    done = leyden("train", "--resume", loop, "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    await assert_each_group_learned_from_once(run, STEPS, BOUNDS[loop])
    assert before.items() <= (await ended_by(run)).items(), "a finished rollout was run again"
    if loop == "one_off":
        weights, same = (folder / "policy" / "model.safetensors" for folder in (run, undisturbed(loop)))
        assert weights.read_bytes() == same.read_bytes(), "a deterministic run ends with other weights after a kill"
