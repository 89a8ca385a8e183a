"""VERL's own trainers under Ray, on a CPU, with the examples' agents unchanged; a killed run goes on.

Skipped where VERL is missing. A GPU is not used, and vLLM is not: `tests/support/verl_cpu` stands for both.
"""

import time
from pathlib import Path

import pytest
from verl_cpu.learned import assert_learned, ended_by, lines
from verl_cpu.runs import MISSING, STEPS, Runs, finished

SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_cpu.transport",
)
"""Hydra overrides: replicas of their own, and two updates in each step before they are given the weights."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed"),
]


def test_an_agent_of_the_openai_sdk_learns(verl_runs: Runs, tmp_path: Path) -> None:
    finished(verl_runs.train(tmp_path, "sdk", "calculator_openai_agents"))
    assert_learned(tmp_path / "sdk", STEPS)


def test_a_langgraph_agent_learns_on_two_ranks_each_with_a_replica(verl_runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "ranks"
    finished(verl_runs.train(tmp_path, "ranks", "calculator_langgraph", "trainer.n_gpus_per_node=2"))
    assert_learned(run, STEPS)
    assert (run / f"checkpoints/loop/global_step_{STEPS}/actor/model_world_size_2_rank_1.pt").exists()


def test_an_agent_of_the_openai_sdk_learns_while_batches_run_ahead(verl_runs: Runs, tmp_path: Path) -> None:
    finished(verl_runs.train(tmp_path, "ahead", "calculator_openai_agents", "trainer.v1.trainer_mode=colocate_async"))
    assert_learned(tmp_path / "ahead", STEPS, ahead=True)


def test_a_langgraph_agent_learns_beside_replicas_of_their_own_though_the_driver_is_killed(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run = tmp_path / "separate"
    process = verl_runs.train(tmp_path, "separate", "calculator_langgraph", *SEPARATE)
    while not (run / "loop/progress-1.json").exists():
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.2)
    process.kill()
    process.wait()
    before, kept = ended_by(run), lines(run)
    finished(verl_runs.train(tmp_path, "separate", "calculator_langgraph", "resume"))
    assert_learned(run, STEPS, ahead=True)
    assert before.items() <= ended_by(run).items()
    assert kept[:1] == lines(run)[:1]
