"""VERL's own trainers under Ray, on a CPU, with the examples' agents unchanged; a killed run goes on.

Skipped where VERL is missing. A GPU is not used, and vLLM is not: `tests/support/verl_cpu` stands for both.
"""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from verl_cpu.learned import assert_learned, ended_by, lines, rollouts, tried_again
from verl_cpu.runs import MISSING, REPLICA, STEPS, WORKER, Running, Runs, failed, finished, kill_below, wait_for_middle
from verl_cpu.training import CONFIG, GROUP_SIZE, TASKS_PER_STEP, command_line

from leyden.core.algorithm.verl.settings import merged

SEPARATE = (
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_cpu.transport",
)
"""Hydra overrides: replicas of their own, and two updates in each step before they are given the weights."""
AHEAD: dict[str, Any] = {
    "data": {"max_prompt_length": 4},
    "actor_rollout_ref": {"rollout": {"max_model_len": 576}},
    "trainer": {"n_gpus_per_node": 2, "v1": {"trainer_mode": "colocate_async"}},
}
"""Beside `CONFIG`; no prompt is so short."""
NOTHING = re.compile(
    r"leyden: step 1 has nothing to learn from, no call of 4 tasks can be trained \(rollouts: 16 × no call left; "
    r"calls: \d+ × prompt over the limit\): raise data.max_prompt_length"
)
LOST_REPLICA = re.compile("EngineError: no replica is left|TrainingError: VERL ended with code 1: ray.exceptions.Actor")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed"),
]


def tried_again_at(run: Path, step: int, process: Running) -> None:
    """Wait until rollouts whose worker was killed are tried again."""
    while "WorkerDied" not in tried_again(run, step):
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.1)


def test_an_agent_of_the_openai_sdk_learns_by_the_tutorials_dictionary(verl_runs: Runs, tmp_path: Path) -> None:
    said = finished(verl_runs.train(tmp_path, "sdk", "calculator_openai_agents", "tutorial"))
    assert_learned(tmp_path / "sdk", STEPS)
    assert said.count("VERL is not given data.train_files and data.val_files: it has the tasks") == 1


def test_a_langgraph_agent_learns_on_two_ranks_each_with_a_replica(verl_runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "ranks"
    finished(verl_runs.train(tmp_path, "ranks", "calculator_langgraph", "trainer.n_gpus_per_node=2"))
    assert_learned(run, STEPS)
    assert (run / f"checkpoints/loop/global_step_{STEPS}/actor/model_world_size_2_rank_1.pt").exists()


def test_a_langgraph_agent_learns_on_two_ranks_beside_a_replica_of_its_own_through_kills(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run = tmp_path / "separate"
    process = verl_runs.train(tmp_path, "separate", "calculator_langgraph", *SEPARATE)
    wait_for_middle(run, 2, process)
    kill_below(process.pid, WORKER)
    tried_again_at(run, 2, process)
    kill_below(verl_runs.head.pid, REPLICA, last=True)
    assert LOST_REPLICA.search(failed(process).splitlines()[-1])
    assert "failed" not in {one.status for one, _ in rollouts(run)}
    before, kept = ended_by(run), lines(run)

    process = verl_runs.train(tmp_path, "separate", "calculator_langgraph", "resume")
    wait_for_middle(run, 3, process)
    process.kill()
    process.wait()
    assert before.items() <= ended_by(run).items()
    before = ended_by(run)
    finished(verl_runs.train(tmp_path, "separate", "calculator_langgraph", "resume"))
    assert_learned(run, STEPS, ahead=True)
    assert before.items() <= ended_by(run).items()
    assert kept == lines(run)[: len(kept)]


def test_an_agent_of_the_openai_sdk_learns_on_two_ranks_while_batches_run_ahead_through_kills(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run, agent = tmp_path / "ahead", Path("examples/calculator_openai_agents")
    words = command_line(tmp_path, "ahead", agent, merged(CONFIG, AHEAD), STEPS, verl_runs.head.address)
    said = failed(verl_runs.start("leyden.core.cli", *words), code=2)
    assert NOTHING.search(said.splitlines()[-1])
    assert not lines(run)
    before = ended_by(run)
    assert sum(name.startswith("train-s1-") for name in before) >= TASKS_PER_STEP * GROUP_SIZE

    resume = ("leyden.core.cli", "train", "--resume", "ahead", "--runs", str(tmp_path))
    process = verl_runs.start(*resume, "--set", "config.data.max_prompt_length=512")
    wait_for_middle(run, 2, process)
    kill_below(process.pid, WORKER)
    tried_again_at(run, 2, process)
    kill_below(verl_runs.head.pid, REPLICA)
    assert "A replica is lost, 1 are left: " in failed(process)
    assert before.items() <= ended_by(run).items()
    before = ended_by(run)
    finished(verl_runs.start(*resume))
    assert_learned(run, STEPS, ahead=True)
    assert before.items() <= ended_by(run).items()
