"""Whole runs with VERL on a CPU in which everything is killed once: they go on, and nothing is lost or trained twice.

Skipped where VERL is missing; see `test_verl_runs`.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from verl_cpu.learned import (
    GAP,
    Told,
    assert_learned,
    ended_by,
    lines,
    rollouts,
    told_at,
    tried_again,
)
from verl_cpu.runs import (
    ACTOR,
    MISSING,
    REPLICA,
    STEPS,
    WORKER,
    Runs,
    failed,
    finished,
    kill_below,
    named_below,
    wait_for_middle,
)
from verl_cpu.training import CONFIG, GROUP_SIZE, TASKS_PER_STEP, command_line

from leyden.core.algorithm.verl.settings import merged
from leyden.core.trainer.serving import embedded_policy

EXAMPLE = Path("examples/calculator_langgraph")
PPO: dict[str, Any] = {
    "algorithm": {"adv_estimator": "gae", "gamma": 1.0, "lam": 0.95},
    "critic": {
        "strategy": "fsdp2",
        "ppo_micro_batch_size_per_gpu": 8,
        "optim": {"lr": 1e-4},
        "model": CONFIG["actor_rollout_ref"]["model"],
        "fsdp": CONFIG["actor_rollout_ref"]["actor"]["fsdp_config"],
    },
    "trainer": {"n_gpus_per_node": 2},
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed"),
]


def test_a_run_with_runners_on_ray_outlives_an_actor_its_replica_and_its_driver(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run, head = tmp_path / "graph", verl_runs.head.pid
    process = verl_runs.train(tmp_path, "graph", "calculator_langgraph", "ray")
    wait_for_middle(run, 1, process)
    actors = named_below(head, ACTOR)
    assert len(actors) == 2
    kill_below(head, ACTOR)
    wait_for_middle(run, 2, process)
    assert "WorkerDied" in tried_again(run, 1)
    kill_below(head, REPLICA)
    said = failed(process)
    last = said.splitlines()[-1]
    assert "EngineError: no replica is left to serve the policy: the vLLM server at http://127.0.0.1:" in last
    assert last.endswith(f"; all that VERL said is in {run / 'loop/verl.log'}")
    assert "failed" not in {one.status for one, _ in rollouts(run)}
    done = ended_by(run)

    process = verl_runs.train(tmp_path, "graph", "calculator_langgraph", "resume")
    wait_for_middle(run, 3, process)
    assert len(named_below(head, ACTOR)) == 2
    process.kill()
    process.wait()
    assert done.items() <= ended_by(run).items()
    done = ended_by(run)

    finished(verl_runs.train(tmp_path, "graph", "calculator_langgraph", "resume"))
    assert_learned(run, STEPS)
    assert done.items() <= ended_by(run).items()
    assert not named_below(head, ACTOR)


def test_ppo_from_the_command_line_outlives_one_of_two_replicas_and_a_worker(verl_runs: Runs, tmp_path: Path) -> None:
    run, resume = tmp_path / "ppo", ("train", "--resume", "ppo", "--runs", str(tmp_path))
    address = verl_runs.head.address
    config = merged(CONFIG, PPO)
    process = verl_runs.start("leyden.core.cli", *command_line(tmp_path, "ppo", EXAMPLE, config, STEPS, address))
    wait_for_middle(run, 2, process)
    kill_below(verl_runs.head.pid, REPLICA)
    said = failed(process)
    assert "A replica is lost, 1 are left: " in said
    last = said.splitlines()[-1]
    assert last.startswith("leyden: VERL ended with code 1: ray.exceptions.ActorDiedError: "), said
    assert "(class_name: CpuServer); all it said is in " in last
    assert f"failed; go on with: leyden {' '.join(resume)}\n" in said
    done = ended_by(run)
    of_second = [name for name in done if name.startswith("train-s2-")]
    assert len(of_second) == TASKS_PER_STEP * GROUP_SIZE, "the other replica has answered what was left"
    assert len(lines(run)) == 1

    process = verl_runs.start("leyden.core.cli", *resume)
    wait_for_middle(run, 3, process)
    kill_below(process.pid, WORKER)
    said = finished(process)
    assert f"trained policy: {run / 'policy'}" in said
    assert_learned(run, STEPS)
    assert done.items() <= ended_by(run).items()
    assert set(tried_again(run, 3)) == {"WorkerDied"}
    assert all(line["critic/vf_loss"] > 0 for line in lines(run))
    assert_exported(verl_runs, run, tmp_path / "exported")


def test_a_run_ends_when_the_controller_of_verls_queue_is_lost(verl_runs: Runs, tmp_path: Path) -> None:
    process = verl_runs.train(tmp_path, "queue", "calculator_langgraph")
    wait_for_middle(tmp_path / "queue", 1, process)
    kill_below(verl_runs.head.pid, "ray::TransferQueueController")
    last = failed(process).splitlines()[-1]
    assert last.startswith("leyden.core.errors.TrainingError: VERL's queue is lost, TransferQueueController died: ")
    assert "failed" not in {one.status for one, _ in rollouts(tmp_path / "queue")}


def assert_exported(verl_runs: Runs, run: Path, to: Path) -> None:
    """The last version is a plain Hugging Face folder, and served it tells what VERL's replica told."""
    models, runs = ("leyden.core.cli", "models"), ("--runs", str(run.parent), "--json")
    listed = finished(verl_runs.start(*models, "list", run.name, *runs))
    assert [json.loads(line)["version"] for line in listed.splitlines()] == list(range(STEPS + 1))
    finished(verl_runs.start(*models, "export", run.name, "last", str(to), *runs))
    told = told_at(run, STEPS)
    for one, scores in zip(told, asyncio.run(served(str(to), told)), strict=True):
        assert scores[-len(one.logprobs) :] == pytest.approx(one.logprobs, abs=GAP)


async def served(policy: str, told: list[Told]) -> list[list[float]]:
    """What an engine of ours that serves `policy` says of the same ids."""
    async with embedded_policy(policy) as serving:
        return [await serving.engine.score(one.ids) for one in told]
