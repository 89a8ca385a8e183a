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
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from verl_cpu.training import GROUP_SIZE, HELD_OUT, TASKS_PER_STEP, VARIABLES

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.data.tokens import unpack_ids, unpack_log_probs
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.store.open import open_store
from leyden.core.testing.ports import free_port
from leyden.core.trajectory.calls import is_recorded_call

STEPS = 3
MISSING = [name for name in ("verl", "ray", "transfer_queue") if importlib.util.find_spec(name) is None]
ROOT = Path(__file__).parents[1]

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
    """Every rollout in the run's store, with its spans."""
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        return [(one, (await store.query_spans(one.rollout_id)).items) for one in await store.query_rollouts()]
    finally:
        await store.close()


def assert_learned(run: Path) -> None:
    """Each step learned from its own whole batch, served as trained; each rollout ran once; the policy is there."""
    steps = lines(run)
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line["rollouts"] == TASKS_PER_STEP * GROUP_SIZE for line in steps)
    assert all(0 < line["transitions_trained"] <= line["transitions"] for line in steps)
    assert max(line["served_trained_gap"] for line in steps) < 1e-5
    assert all(line["training/off_policy/trajectory_staleness_worst/max"] == 0 for line in steps)
    found = asyncio.run(rollouts(run))
    assert {one.status for one, _ in found} == {"succeeded"}
    trained = [(one, spans) for one, spans in found if one.mode == "train"]
    assert len(trained) == STEPS * TASKS_PER_STEP * GROUP_SIZE
    assert len(found) - len(trained) == 2 * HELD_OUT
    calls = [sum(is_recorded_call(span) for span in spans) for _, spans in trained]
    assert 1 <= min(calls) <= max(calls) <= 5
    assert max(calls) > 1
    for one, spans in trained:
        step = int(one.rollout_id.split("-")[1].removeprefix("s"))
        drawn_by = [span.attributes[semconv.POLICY_VERSION] for span in spans if is_recorded_call(span)]
        assert all(version == step - 1 for version in drawn_by)
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["rollouts"]) == (STEPS, len(found))
    assert None not in (report["success_before"], report["success_after"])
    assert_served_at_last(run, found)


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


def assert_learned_though_killed(training: Training, run: Path, *overrides: str) -> None:
    """Begin `run`, kill its driver after the first step, and go on; what had ended then is not run again."""
    process = training(run.parent, run.name, "calculator_langgraph", *overrides)
    while not lines(run):
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.2)
    process.kill()
    process.wait()
    before = ended_by(run)
    finished(training(run.parent, run.name, "calculator_langgraph", "resume"))
    assert_learned(run)
    assert before.items() <= ended_by(run).items()


def ended_by(run: Path) -> dict[str, str]:
    """Of every rollout that has succeeded: the attempt that ended it."""
    return {
        one.rollout_id: one.attempt.attempt_id
        for one, _ in asyncio.run(rollouts(run))
        if isinstance(one, AttemptedRollout) and one.status == "succeeded"
    }
