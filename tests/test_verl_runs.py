"""VERL's own trainers under Ray, on a CPU, with the examples' agents unchanged; a killed run goes on.

In each run but one something is killed: nothing is lost then, or trained twice. The runs share a Ray cluster, and each
tries several things: to begin one takes VERL half a minute. Skipped where VERL is missing. A GPU is not used, and vLLM
is not: `tests/support/verl_cpu` stands for both.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from verl_cpu.learned import (
    GAP,
    Told,
    assert_learned,
    assert_not_run_again,
    ended,
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
    Running,
    Runs,
    failed,
    finished,
    kill_below,
    named_below,
    wait_for_beginning,
    wait_for_middle,
)
from verl_cpu.training import CONFIG, GROUP_SIZE, TASKS_PER_STEP, command_line

from leyden.core.algorithm.verl.driver.derived_settings import merged
from leyden.core.data import semconv
from leyden.core.trainer.serving.serving import embedded_policy
from leyden.core.trajectory.calls import is_recorded_call

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
Leyden = Callable[..., "CompletedProcess[str]"]
EXAMPLE = Path("examples/calculator_langgraph")
MIGRATED_HELD_OUT = 4
"""Held-out tasks of the programs in `tests/support/migrated`."""
NOTHING = re.compile(
    r"leyden: step 1 has nothing to learn from: no call of its 4 tasks can be trained on \(rollouts: 16 × no call left"
    r"; calls: \d+ × prompt over the limit\): raise data.max_prompt_length"
)

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed"),
]


def tried_again_at(run: Path, step: int, process: Running) -> None:
    """Wait until rollouts whose worker was killed are tried again."""
    while "WorkerDied" not in tried_again(run, step):
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.1)


def test_an_agent_of_the_openai_sdk_learns_on_two_ranks_by_the_tutorials_dictionary(
    verl_runs: Runs, tmp_path: Path, leyden: Leyden
) -> None:
    run = tmp_path / "sdk"
    said = finished(
        verl_runs.train(tmp_path, "sdk", "calculator_openai_agents", "tutorial", "trainer.n_gpus_per_node=2")
    )
    assert_learned(run, STEPS)
    assert said.count("VERL ignores data.train_files and data.val_files: it trains") == 1
    assert (run / f"checkpoints/loop/global_step_{STEPS}/actor/model_world_size_2_rank_1.pt").exists()

    arguments = ["--reward", "examples/calculator_openai_agents/reward.py:score", "--runs", str(tmp_path)]
    scored = leyden("rescore", "sdk", *arguments, "--out", str(tmp_path / "scored.json"), timeout=300)
    assert scored.returncode == 0, scored.stderr
    of_rollouts = json.loads((tmp_path / "scored.json").read_text())["rollouts"]
    assert len(of_rollouts) == STEPS * TASKS_PER_STEP * GROUP_SIZE
    assert all(one["after"] == one["before"] is not None for one in of_rollouts)


@pytest.mark.campaign
def test_programs_in_the_form_of_agent_lightnings_tutorials_train_by_changing_the_import(
    verl_runs: Runs, tmp_path: Path
) -> None:
    given = {"RAY_ADDRESS": verl_runs.head.address}  # the bare dictionary names no cluster
    for name in ("sql", "calc"):
        process = verl_runs.start(f"migrated.{name}", str(tmp_path), **given)
        finished(process)
    for name, nodes in (("sql", {"write_query", "rewrite_query"}), ("calc", {None})):
        (line,), everything = lines(tmp_path / name), rollouts(tmp_path / name)
        assert {one.status for one, _ in everything} == {"succeeded"}
        assert (len(everything), line["rollouts"]) == (TASKS_PER_STEP * GROUP_SIZE + 2 * MIGRATED_HELD_OUT, 16)
        spans = [span for one, own in everything if one.mode == "train" for span in own]
        chosen = [span for span in spans if is_recorded_call(span) and span.attributes.get(semconv.NODE) in nodes]
        assert line["transitions"] == len(chosen)
        assert 0 < line["transitions_trained"] <= len(chosen)
        assert line["served_trained_gap"] < GAP
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert None not in (report["success_before"], report["success_after"])


@pytest.mark.campaign
def test_a_langgraph_agent_learns_on_two_ranks_beside_a_replica_of_its_own_through_kills(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run = tmp_path / "separate"
    process = verl_runs.train(tmp_path, "separate", "calculator_langgraph", *SEPARATE)
    wait_for_middle(run, 2, process)
    kill_below(process.pid, WORKER)
    tried_again_at(run, 2, process)
    wait_for_middle(run, 3, process)
    kill_below(verl_runs.head.pid, "ray::TransferQueueController")
    last = failed(process).splitlines()[-1]
    assert last == "leyden.core.errors.TrainingError: VERL's queue is lost because TransferQueueController died"
    assert "failed" not in {one.status for one, _ in rollouts(run)}
    before, kept = ended(run), lines(run)
    finished(verl_runs.train(tmp_path, "separate", "calculator_langgraph", "resume"))
    assert_learned(run, STEPS, ahead=True)
    assert_not_run_again(before, run)
    assert kept == lines(run)[: len(kept)]


@pytest.mark.campaign
def test_an_agent_of_the_openai_sdk_learns_on_two_ranks_while_batches_run_ahead_and_a_worker_dies(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run, agent = tmp_path / "ahead", Path("examples/calculator_openai_agents")
    words = command_line(tmp_path, "ahead", agent, merged(CONFIG, AHEAD), STEPS, verl_runs.head.address)
    said = failed(verl_runs.start("leyden.core.cli", *words), code=2)
    assert NOTHING.search(said.splitlines()[-1])
    assert not lines(run)
    before = ended(run)
    assert sum(name.startswith("train-s1-") for name in before.by) >= TASKS_PER_STEP * GROUP_SIZE

    resume = ("leyden.core.cli", "train", "--resume", "ahead", "--runs", str(tmp_path))
    process = verl_runs.start(*resume, "--set", "config.data.max_prompt_length=512")
    wait_for_middle(run, 2, process)
    kill_below(process.pid, WORKER)
    tried_again_at(run, 2, process)
    finished(process)
    assert_learned(run, STEPS, ahead=True)
    assert_not_run_again(before, run)


@pytest.mark.campaign
def test_ppo_from_the_command_line_with_runners_on_ray_outlives_an_actor_a_replica_and_its_driver(
    verl_runs: Runs, tmp_path: Path
) -> None:
    run, resume = tmp_path / "ppo", ("train", "--resume", "ppo", "--runs", str(tmp_path))
    head = verl_runs.head
    words = command_line(tmp_path, "ppo", EXAMPLE, merged(CONFIG, PPO), STEPS, head.address)
    on_ray = ("--runners", "ray", "--ray-address", head.address, "--ray-actors", "2", "--ray-cpus", "0.5")
    process = verl_runs.start("leyden.core.cli", *words, *on_ray, "--workers", "2")
    wait_for_beginning(run, 1, process, running=12)  # one actor runs eight at most
    assert len(named_below(head.pid, ACTOR)) == 2
    kill_below(head.pid, ACTOR)
    wait_for_beginning(run, 2, process, running=4)
    assert "WorkerDied" in tried_again(run, 1)
    kill_below(head.pid, REPLICA)
    said = failed(process)
    assert "A replica was lost, 1 are left: " in said
    last = said.splitlines()[-1]
    assert last.startswith("leyden: VERL ended with code 1: ray.exceptions.ActorDiedError: "), said
    assert f"(class_name: CpuServer); its output is in {run / 'loop/verl.log'}" in last
    assert f"failed; continue with: leyden {' '.join(resume)}\n" in said
    done = ended(run)
    of_second = [name for name in done.by if name.startswith("train-s2-")]
    assert len(of_second) == TASKS_PER_STEP * GROUP_SIZE, "the other replica has answered what was left"
    assert len(lines(run)) == 1

    process = verl_runs.start("leyden.core.cli", *resume)
    wait_for_middle(run, 3, process)
    assert len(named_below(head.pid, ACTOR)) == 2
    process.kill()
    process.wait()
    assert_not_run_again(done, run)
    done = ended(run)

    said = finished(verl_runs.start("leyden.core.cli", *resume))
    assert f"trained policy: {run / 'policy'}" in said
    assert_learned(run, STEPS)
    assert_not_run_again(done, run)
    assert not named_below(head.pid, ACTOR)
    assert all(line["critic/vf_loss"] > 0 for line in lines(run))
    assert_exported(verl_runs, run, tmp_path / "exported")


def assert_exported(verl_runs: Runs, run: Path, to: Path) -> None:
    """The last version is a plain Hugging Face folder, and serves the log-probabilities of VERL's replica."""
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
