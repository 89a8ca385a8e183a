"""A small run, looked at from outside: its files, and that what was trained on is what the engine drew."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from check_record import calls_recorded_wrongly, engine_log, largest_difference, read_record
from leyden.core.store.open import open_store

POLICY = Path(__file__).parents[1] / "examples/calculator_langgraph/policy"
FILES: Any = safetensors.torch

pytestmark = pytest.mark.timeout(600)


def test_the_run_folder_holds_all_it_should(small_run: Path) -> None:
    report = json.loads((small_run / "report.json").read_text())
    assert (report["steps"], report["seed"]) == (3, 0)
    batches, rest = divmod(report["rollouts"] - 4 * 8, 16)
    assert batches >= 3, "one of each step, and those that had no lesson"
    assert rest == 0
    for key in ("success_before", "success_after", "sampled_before", "sampled_after", "seconds", "cpu_seconds"):
        assert report[key] is not None, key
    assert report["transitions"] > 0
    assert report["tokens_generated"] > report["tokens_trained"] > 0
    assert {"evaluate", "rollouts", "update", "publish", "checkpoint"} <= set(report["seconds_by_phase"])
    lines = [json.loads(line) for line in (small_run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3]
    for name in ("config.yaml", "store.db", "reward_curve.png", "trackers/tensorboard"):
        assert (small_run / name).exists(), name
    assert (small_run / "store.db").stat().st_mode & 0o077 == 0


def test_the_trained_policy_is_a_plain_hugging_face_folder(small_run: Path) -> None:
    auto: Any = AutoModelForCausalLM
    trained = auto.from_pretrained(small_run / "policy").state_dict()
    last = FILES.load_file(small_run / "checkpoints" / "step-00000003" / "model.safetensors")
    assert all(torch.equal(trained[name], tensor) for name, tensor in last.items())
    assert (small_run / "policy" / "chat_template.jinja").exists()


async def test_the_store_knows_the_run_its_metrics_and_its_versions(small_run: Path) -> None:
    store = await open_store(f"sqlite:///{small_run}/store.db")
    (run,) = await store.query_runs()
    assert (run.name, run.status) == (small_run.name, "succeeded")
    assert run.end_time is not None and run.end_time > run.start_time
    assert run.config["steps"] == 3
    lines = [json.loads(line) for line in (small_run / "metrics.jsonl").read_text().splitlines()]
    metrics = {found.step: found.values for found in await store.query_metrics(run.run_id)}
    assert {step: own["reward"] for step, own in metrics.items() if "reward" in own} == {
        line["step"]: line["reward"] for line in lines if "reward" in line
    }
    assert {step for step, own in metrics.items() if any(name.startswith("held_out/") for name in own)} == {0, 3}
    versions = (await store.query_policy_versions(run_id=run.run_id)).items
    assert [(found.version, found.parent) for found in versions] == [(0, None), (1, 0), (2, 1), (3, 2)]
    kept = sorted(path.name for path in (small_run / "checkpoints").iterdir())
    assert sorted(Path(found.path).name for found in versions[1:] if found.path is not None) == kept
    await store.close()


async def test_every_call_of_the_engine_is_in_exactly_one_record(small_run: Path) -> None:
    record, log = await read_record(small_run), engine_log(small_run)
    assert len(log) > 3 * 16
    assert calls_recorded_wrongly(record, log) == []
    assert len(record.transitions) + record.excluded.total() == len(log)
    for call in record.transitions:
        assert list(call.prompt_ids) == log[call.call_id]["prompt_ids"]
        assert list(call.response_ids) == log[call.call_id]["response_ids"]


async def test_a_call_that_was_not_recorded_or_differs_is_found(small_run: Path) -> None:
    record, log = await read_record(small_run), engine_log(small_run)
    first, second, *_ = log
    log[first]["response_ids"][-1] += 1
    log["never recorded"] = log.pop(second)
    assert set(calls_recorded_wrongly(record, log)) == {first, second, "never recorded"}


async def test_recorded_log_probabilities_are_those_of_the_recorded_version(small_run: Path) -> None:
    record = await read_record(small_run)
    worst, versions = largest_difference(small_run, POLICY, record.transitions)
    assert versions == {0, 1, 2, 3}
    assert worst < 1e-4


def test_the_first_importance_ratios_are_one(small_run: Path) -> None:
    lines = [json.loads(line) for line in (small_run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "importance_ratio_deviation" in line]
    assert len(steps) == 3
    for line in steps:
        assert line["importance_ratio_deviation"] < 1e-3
        assert line["served_trained_gap"] < 1e-4
