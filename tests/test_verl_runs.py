"""VERL's own trainer under Ray, on a CPU, with the examples' agents unchanged; a killed run goes on.

Skipped where VERL is missing. A GPU is not used, and vLLM is not: `tests/support/verl_cpu` stands for both.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from verl_cpu.training import GROUP_SIZE, HELD_OUT, TASKS_PER_STEP, VARIABLES

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.verl.advantages import Estimation, RowCredit, row_advantages
from leyden.core.algorithm.verl.rows import RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.data.tokens import unpack_ids, unpack_log_probs
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.store.open import open_store
from leyden.core.testing.ports import free_port
from leyden.core.trainer.folder import RunFolder
from leyden.core.trainer.lost import LOST
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector

STEPS = 3
OLDEST = "training/off_policy/trajectory_staleness_worst/max"
MISSING = [name for name in ("verl", "ray", "transfer_queue") if importlib.util.find_spec(name) is None]
ROOT = Path(__file__).parents[1]
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

Training = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """Of every process: VERL's way to the CPU, and no cluster of somebody else's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(ROOT / "tests/support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Ray gives its agent 15 seconds to start, which compiling all of it again takes on a busy machine.
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return {**ours, **VARIABLES, **quiet, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def cluster(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A Ray cluster with two logical GPUs, which are CPUs; its address."""
    folder = Path("/tmp") / f"leyden-ray-{os.getpid()}"  # sockets have short paths
    port = free_port()
    given = (
        "dashboard-agent-grpc-port",
        "dashboard-agent-listen-port",
        "runtime-env-agent-port",
        "metrics-export-port",
    )
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=8", "--num-gpus=2", "--include-dashboard=false", f"--temp-dir={folder}"]
    command += [f"--{name}={free_port()}" for name in given]
    log = tmp_path_factory.mktemp("ray") / "ray.log"
    with log.open("wb") as output:
        head = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def training(cluster: str, variables: dict[str, str]) -> Generator[Training]:
    """Start a training, or go on with one."""
    started: list[subprocess.Popen[str]] = []

    def start(runs: Path, name: str, agent: str, *more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "verl_cpu.training", cluster, str(runs), name, agent, str(STEPS), *more]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, env=variables, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def finished(process: "subprocess.Popen[str]") -> None:
    output, _ = process.communicate()
    assert process.returncode == 0, output[-4000:]


def lines(run: Path) -> list[dict[str, Any]]:
    """The numbers of the run's steps so far."""
    file = run / "metrics.jsonl"
    told = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []
    return [line for line in told if "reward" in line]


async def rollouts(run: Path) -> list[tuple[Rollout, list[Span]]]:
    """Every rollout in the run's store that may be learned from, with the spans of its last attempt."""
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        found = [one for one in await store.query_rollouts() if LOST not in one.metadata]
        last = [one.attempt.attempt_id if isinstance(one, AttemptedRollout) else None for one in found]
        spans = [await store.query_spans(one.rollout_id, attempt) for one, attempt in zip(found, last, strict=True)]
        return [(one, own.items) for one, own in zip(found, spans, strict=True)]
    finally:
        await store.close()


def assert_learned(run: Path, *, ahead: bool = False) -> None:
    """Each step learned from a whole batch, drawn by the weights it is recorded with; the policy is there.

    `ahead`: batches are begun before the updates that come before them, and the last ones never learned from.
    """
    steps = lines(run)
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line["rollouts"] == TASKS_PER_STEP * GROUP_SIZE for line in steps)
    assert all(0 < line["transitions_trained"] <= line["transitions"] for line in steps)
    assert (max(line[OLDEST] for line in steps) > 0) == ahead
    assert all((line[OLDEST] == 0) == ("served_trained_gap" in line) for line in steps)
    assert max(line.get("served_trained_gap", 0.0) for line in steps) < 1e-5
    everything = asyncio.run(rollouts(run))
    found = [(one, spans) for one, spans in everything if one.status == "succeeded"]
    trained = [(one, spans) for one, spans in found if one.mode == "train"]
    assert len(found) - len(trained) == 2 * HELD_OUT
    if not ahead:
        assert found == everything
        assert len(trained) == STEPS * TASKS_PER_STEP * GROUP_SIZE
    calls = [[span for span in spans if is_recorded_call(span)] for _, spans in trained]
    assert 1 <= min(map(len, calls)) < max(map(len, calls)) <= 5
    models = versions(run)
    assert_drawn_as_recorded(models, [call for own in calls for call in own])
    if not ahead:
        for line in steps:
            assert_learned_along_its_gradient(models[line["step"] - 1], line, trained)
        for one, spans in trained:
            step = int(one.rollout_id.split("-")[1].removeprefix("s"))
            drawn_by = [span.attributes[semconv.POLICY_VERSION] for span in spans if is_recorded_call(span)]
            assert all(version == step - 1 for version in drawn_by)
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == STEPS
    assert STEPS * TASKS_PER_STEP * GROUP_SIZE + 2 * HELD_OUT <= report["rollouts"] <= len(everything)
    assert None not in (report["success_before"], report["success_after"])
    assert_served_at_last(run, found)


def versions(run: Path) -> dict[int, PolicyModel]:
    """The weights of every version of the run."""
    kept = {step: run / f"checkpoints/loop/global_step_{step}/actor/huggingface" for step in range(1, STEPS + 1)}
    begun_with: str = RunFolder(run).written_config()["policy"]
    return {step: PolicyModel.load(folder) for step, folder in {0: begun_with, **kept}.items()}


def assert_learned_along_its_gradient(
    model: PolicyModel, line: dict[str, Any], trained: Sequence[tuple[Rollout, list[Span]]]
) -> None:
    """A step that one mini-batch makes, however many ranks part it, has the loss and the gradient of its rollouts."""
    if line["transitions_trained"] > TASKS_PER_STEP * GROUP_SIZE:
        return  # a second update begins where the first one ended
    estimator = ADVANTAGE.make("grpo")
    group = [one for one in trained if one[0].rollout_id.startswith(f"train-s{line['step']}-")]
    attempted = [(one, spans) for one, spans in group if isinstance(one, AttemptedRollout)]
    trajectories = [assemble(one, one.attempt, spans, Selector()) for one, spans in attempted]
    tasks = {one.rollout_id: str(one.metadata["task"]) for one, _ in group}
    limits, credit = RowLimits(prompt=512, response=64), CREDIT.make("uniform")
    groups = enumerate(group_by_task(trajectories, tasks))
    rows = [row for place, own in groups for row in training_rows(f"{place}", own, credit, estimator, limits).rows]
    lengths = [len(row.response_ids) for row in rows]
    credits = [
        RowCredit(key=row.key, credit=row.credit, weight=row.weight, tokens=tokens)
        for row, tokens in zip(rows, lengths, strict=True)
    ]
    loss, advantages = torch.zeros(()), row_advantages(credits, Estimation(estimator=estimator))
    for row, tokens, advantage in zip(rows, lengths, advantages.tolist(), strict=True):
        ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
        logits_TV = model.module(ids).logits[0, -tokens - 1 : -1]
        logprobs_T = logits_TV.log_softmax(-1).gather(1, ids[0, -tokens:, None])
        loss = loss - advantage * (logprobs_T - logprobs_T.detach()).exp().sum() / sum(lengths)
    model.module.zero_grad()
    torch.autograd.backward(loss)
    norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
    assert (line["loss"], line["grad_norm"]) == pytest.approx((loss.item(), norm.item()), rel=1e-5, abs=1e-6)


def assert_drawn_as_recorded(models: dict[int, PolicyModel], calls: Sequence[Span]) -> None:
    """The weights of the versions that a call is recorded with are as likely to draw it as it was told."""
    for call in calls:
        prompt, response = (
            unpack_ids(bytes_of(call, key)).tolist() for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS)
        )
        told = unpack_log_probs(bytes_of(call, semconv.RESPONSE_LOGPROBS)).tolist()
        first = call.attributes[semconv.POLICY_VERSION]
        flat = cast("list[int]", call.attributes.get(semconv.POLICY_VERSIONS, [first, len(response)]))
        drawn_by = [version for version, count in batched(flat) for _ in range(count)]
        again = {version: score(models[version], prompt + response)[-len(response) :] for version in {*drawn_by}}
        gaps = [abs(value - again[by][at]) for at, (value, by) in enumerate(zip(told, drawn_by, strict=True))]
        assert max(gaps) < 1e-5


def batched(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def assert_served_at_last(run: Path, found: list[tuple[Rollout, list[Span]]]) -> None:
    """The last validation was drawn by the weights in `policy/`: the update after the last step was served, too."""
    model = PolicyModel.load(run / "policy")
    last = [spans for one, spans in found if one.mode == "val" and f"-s{STEPS}-" in one.rollout_id]
    assert len(last) == HELD_OUT
    for spans in last:
        call = next(span for span in spans if is_recorded_call(span))
        ids = [unpack_ids(bytes_of(call, key)).tolist() for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS)]
        told = unpack_log_probs(bytes_of(call, semconv.RESPONSE_LOGPROBS)).tolist()
        again = score(model, ids[0] + ids[1])[-len(ids[1]) :]
        assert max(abs(a - b) for a, b in zip(told, again, strict=True)) < 1e-5


def bytes_of(span: Span, key: str) -> bytes:
    value = span.attributes[key]
    assert isinstance(value, bytes)
    return value


def test_an_agent_of_the_openai_sdk_learns(training: Training, tmp_path: Path) -> None:
    finished(training(tmp_path, "sdk", "calculator_openai_agents"))
    assert_learned(tmp_path / "sdk")


def test_a_langgraph_agent_learns_though_the_driver_is_killed(training: Training, tmp_path: Path) -> None:
    assert_learned_though_killed(training, tmp_path / "graph")


def test_a_langgraph_agent_learns_on_two_ranks_though_the_driver_is_killed(training: Training, tmp_path: Path) -> None:
    run = tmp_path / "ranks"
    assert_learned_though_killed(training, run, "trainer.n_gpus_per_node=2")
    assert (run / f"checkpoints/loop/global_step_{STEPS}/actor/model_world_size_2_rank_1.pt").exists()


def test_a_langgraph_agent_learns_beside_replicas_of_their_own_though_the_driver_is_killed(
    training: Training, tmp_path: Path
) -> None:
    assert_learned_though_killed(training, tmp_path / "separate", *SEPARATE, ahead=True)


def test_an_agent_of_the_openai_sdk_learns_while_batches_run_ahead(training: Training, tmp_path: Path) -> None:
    finished(training(tmp_path, "ahead", "calculator_openai_agents", "trainer.v1.trainer_mode=colocate_async"))
    assert_learned(tmp_path / "ahead", ahead=True)


def assert_learned_though_killed(training: Training, run: Path, *overrides: str, ahead: bool = False) -> None:
    """Begin `run`, kill its driver when the first step is kept, and go on; what had ended then is not run again."""
    process = training(run.parent, run.name, "calculator_langgraph", *overrides)
    while not (run / "loop/progress-1.json").exists():
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.2)
    process.kill()
    process.wait()
    before, kept = ended_by(run), lines(run)
    finished(training(run.parent, run.name, "calculator_langgraph", "resume"))
    assert_learned(run, ahead=ahead)
    assert before.items() <= ended_by(run).items()
    assert kept[:1] == lines(run)[:1]


def ended_by(run: Path) -> dict[str, str]:
    """Of every rollout that has succeeded: the attempt that ended it."""
    return {
        one.rollout_id: one.attempt.attempt_id
        for one, _ in asyncio.run(rollouts(run))
        if isinstance(one, AttemptedRollout) and one.status == "succeeded"
    }
