"""Imitation and preferences from the command line and from Python: from rollouts of the run, and from stored ones.

One run leaves rollouts behind; others learn from them without an agent, or with one only to be evaluated.
"""

import asyncio
import json
import os
import shlex
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from warm_process import run_leyden

import leyden.core as agl
from leyden.core.cli.main import run

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/calculator_langgraph"
POLICY = str(EXAMPLE / "policy")

pytestmark = [pytest.mark.timeout(600)]


STAGED = [
    *(f"{EXAMPLE}/agent.py:agent", "--tasks", f"{EXAMPLE}/train.jsonl", "--reward", f"{EXAMPLE}/reward.py:score"),
    *("--algorithm", "stages", "--set"),
    'stages=[{"algorithm": "dpo", "steps": 3}, {"algorithm": "lightning_rl"}]',
]


def leyden(runs: Path, *arguments: str) -> "CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
    done = run_leyden(
        ["train", *arguments, "--policy", POLICY, "--runs", str(runs), "--quiet", "--learning-rate", "3e-4"],
        cwd=ROOT,
        environment=environment,
        timeout=200,
    )
    assert "Traceback" not in done.stderr
    return done


def the_agent(*, tasks: str) -> list[str]:
    return [f"{EXAMPLE}/agent.py:agent", "--tasks", tasks, "--reward", f"{EXAMPLE}/reward.py:score", "--no-check"]


def report_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "report.json").read_text())


def steps_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `source`: 4 tasks, 4 rollouts each, filtered by reward and learned from as they came."""
    runs = tmp_path_factory.mktemp("runs")
    batch = ("--steps", "1", "--tasks-per-step", "4", "--group-size", "4", "--name", "source", "--deterministic")
    done = leyden(runs, *the_agent(tasks=f"{EXAMPLE}/train.jsonl"), *batch, "--algorithm", "sft", "--set", "keep=best")
    assert done.returncode == 0, done.stderr
    return runs


def test_rejection_sampling_learns_from_the_best_rollout_of_each_task(runs: Path) -> None:
    (step,) = steps_of(runs / "source")
    assert (step["rollouts"], step["rollouts_imitated"]) == (16, 4)
    assert report_of(runs / "source")["rollouts"] == 16


def test_stored_rollouts_are_imitated_without_agent_and_tasks(runs: Path) -> None:
    settings = ("--set", "spans=source", "--set", "per_step=5", "--set", "held_out=0.25", "--set", "held_out_every=1")
    done = leyden(runs, "--algorithm", "sft", *settings, "--steps", "3", "--name", "imitation")
    assert done.returncode == 0, done.stderr
    report = report_of(runs / "imitation")
    assert (report["steps"], report["rollouts"], report["tokens_generated"]) == (3, 0, 0)
    assert report["stored"]["source"]["rollouts"] == 16
    assert report["stored"]["source"]["retokenised"] == {}
    assert [step["rollouts_imitated"] for step in steps_of(runs / "imitation")] == [5, 5, 5]
    assert all(step["held_out_loss"] > 0 for step in steps_of(runs / "imitation"))
    assert (runs / "imitation" / "policy" / "model.safetensors").exists()


def test_every_rollout_that_why_names_can_be_shown(runs: Path) -> None:
    settings = ("--algorithm", "sft", "--set", "spans=source", "--set", "keep=best")
    assert leyden(runs, *settings, "--steps", "1", "--name", "explained").returncode == 0
    why = ["why", "explained", "--runs", str(runs), "--json"]
    explained = run_leyden(why, cwd=ROOT, environment=os.environ, timeout=100)
    left_out = json.loads(explained.stdout)["rollouts_left_out"]
    assert left_out
    for reason in left_out:
        program, *command = shlex.split(reason["command"])
        assert program == "leyden"
        shown = run_leyden(command, cwd=ROOT, environment=os.environ, timeout=100)
        assert (shown.returncode, reason["example"] in shown.stdout) == (0, True), shown.stderr


def test_a_run_that_is_gone_on_with_deals_the_rest(runs: Path) -> None:
    settings = ("--algorithm", "sft", "--set", "spans=source", "--set", "per_step=3")
    for name, steps in (("whole", "4"), ("parts", "2")):
        assert leyden(runs, *settings, "--steps", steps, "--name", name).returncode == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    resumed = ["train", "--resume", "parts", "--steps", "4", "--runs", str(runs), "--quiet"]
    done = run_leyden(resumed, cwd=ROOT, environment=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    whole, parts = steps_of(runs / "whole"), steps_of(runs / "parts")
    assert [step["step"] for step in parts] == [1, 2, 3, 4]
    assert [step["loss"] for step in parts] == pytest.approx([step["loss"] for step in whole], rel=1e-5)


def test_pairs_of_stored_rollouts_are_learned_from_python_and_evaluated(runs: Path) -> None:
    config = agl.DPOConfig(spans=str(runs / "source"), learning_rate=3e-4, loss={"name": "dpo", "beta": 0.2})
    trainer = agl.Trainer(algorithm=agl.DPO(config), policy=POLICY, name="pairs", runs=runs, steps=2, quiet=True)
    rows = [json.loads(line) for line in (EXAMPLE / "val.jsonl").read_text().splitlines()[:2]]
    report = trainer.fit(f"{EXAMPLE}/agent.py:agent", val_dataset=rows, reward=f"{EXAMPLE}/reward.py:score")
    assert (report.steps, report.rollouts, report.failed_rollouts) == (2, 8, 0)
    assert report.success_before is not None
    first, second = steps_of(runs / "pairs")
    assert first["dpo_margin"] == pytest.approx(0.0, abs=1e-5)
    assert second["dpo_margin"] > 0
    assert second["loss"] < first["loss"] == pytest.approx(0.6931, abs=1e-3)


def test_stored_rollouts_come_first_and_rewards_after_them_also_where_the_run_was_stopped_between(runs: Path) -> None:
    stages: list[dict[str, Any]] = [
        {"algorithm": "sft", "steps": 2, "config": {"spans": "source", "per_step": 4}},
        {"algorithm": "lightning_rl"},
    ]
    settings = ["--algorithm", "stages", "--set", f"stages={json.dumps(stages)}", "--deterministic"]
    settings += ["--tasks-per-step", "4", "--group-size", "4"]
    agent = the_agent(tasks=f"{EXAMPLE}/train.jsonl")
    for name, steps in (("stages-whole", "4"), ("stages-parts", "3")):
        done = leyden(runs, *agent, *settings, "--steps", steps, "--name", name)
        assert done.returncode == 0, done.stderr
    resumed = ["train", "--resume", "stages-parts", "--steps", "4", "--runs", str(runs), "--quiet"]
    done = run_leyden(resumed, cwd=ROOT, environment={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=200)
    assert done.returncode == 0, done.stderr
    whole, parts = steps_of(runs / "stages-whole"), steps_of(runs / "stages-parts")
    assert ["rollouts" in step for step in whole] == [False, False, True, True]
    assert [step["loss"] for step in parts] == [step["loss"] for step in whole]
    files = [(runs / name / "policy" / "model.safetensors").read_bytes() for name in ("stages-whole", "stages-parts")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "spans=nobody"], "no run 'nobody'"),
        (["--set", "spans=sqlite:///nowhere.db"], "there is no store nowhere.db"),
        (["--set", "spans=source", "--set", "above=2"], "16 × reward not above 2"),
        (["--set", "spans=source", "--tasks", f"{EXAMPLE}/train.jsonl"], "tasks have no effect"),
        (["--set", "spans=source", "--val", f"{EXAMPLE}/val.jsonl"], "missing AGENT"),
        ([f"{EXAMPLE}/agent.py:agent", "--set", "spans=source"], "an agent has no effect"),
        (["--set", "keep=best"], "missing AGENT, --tasks"),
        ([], "sft needs spans to imitate"),
        ([*STAGED, "--steps", "3"], "the run's 3 steps are too few for stage 2 (lightning_rl)"),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_nothing_behind(
    runs: Path, arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--algorithm", "sft", "--name", "bad", "--policy", POLICY, "--runs", str(runs), "--quiet"]
    assert run(["train", *options, *arguments]) == 2
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("leyden: ")]
    assert says in line
    assert not (runs / "bad").exists()


async def test_what_a_teacher_answered_is_told_in_the_policys_own_tokens(runs: Path) -> None:
    uri = f"sqlite:///{runs / 'teacher.db'}"
    store = await agl.open_store(uri)
    rollout = await store.start_rollout({"question": "What is 2 plus 3?"})
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    await store.add_span(
        agl.Span(
            rollout_id=ids[0],
            attempt_id=ids[1],
            sequence_id=0,
            trace_id="0" * 32,
            span_id="1" * 16,
            name="chat teacher",
            attributes={
                "leyden.call.id": "upstream-1",
                "leyden.call.dialect": "chat",
                "leyden.not_trained": "answered by an upstream",
                "gen_ai.input.messages": '[{"role": "user", "content": "What is 2 plus 3?"}]',
                "gen_ai.output.messages": '[{"role": "assistant", "content": "5"}]',
                "gen_ai.response.finish_reasons": ["stop"],
            },
            start_time=1.0,
            end_time=2.0,
        )
    )
    await store.update_attempt(*ids, status="succeeded")
    await store.close()
    settings = ("--algorithm", "sft", "--set", f"spans={uri}", "--set", "passes=2", "--name", "taught")
    done = await asyncio.to_thread(leyden, runs, *settings)
    assert done.returncode == 0, done.stderr
    report = report_of(runs / "taught")
    assert report["steps"] == 2
    (stored,) = report["stored"].values()
    assert (stored["calls"], stored["retokenised"]) == (1, {"answered by an upstream": 1})
    first, second = steps_of(runs / "taught")
    assert second["loss"] < first["loss"]
    assert "importance_ratio_deviation" not in first
