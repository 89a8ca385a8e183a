"""Planner and reporter with weights of their own, in one run: who draws, who learns, and a run that is killed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from disturbed_runs import kill, trained_steps, wait_for_step

from leyden.core.data import semconv
from leyden.core.store.open import open_store

ROOT = Path(__file__).parents[1]
EXAMPLE, CALCULATOR = ROOT / "examples/team_langgraph", ROOT / "examples/calculator_langgraph"
NAMES = ("planner", "reporter")
STEPS = 3

pytestmark = [pytest.mark.timeout(600)]


def training(runs: Path, name: str) -> list[str]:
    return [
        *("train", f"{EXAMPLE}/agent.py:agent", "--tasks", f"{CALCULATOR}/train.jsonl"),
        *("--reward", f"{EXAMPLE}/reward.py:score", "--learning-rate", "6e-4", "--steps", str(STEPS)),
        *(word for policy in NAMES for word in ("--policy", f"{policy}={CALCULATOR}/policy")),
        *("--route", "node=planner,to=planner", "--route", "to=reporter"),
        *("--tasks-per-step", "4", "--group-size", "4", "--deterministic", "--quiet"),
        *("--runs", str(runs), "--name", name),
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    library: Any = safetensors.torch
    return library.load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


async def calls(store_file: Path) -> list[tuple[object, object]]:
    """Node and policy of every recorded call."""
    store = await open_store(f"sqlite:///{store_file}")
    try:
        rollouts = (await store.query_rollouts()).items
        spans = [span for one in rollouts for span in (await store.query_spans(one.rollout_id)).items]
    finally:
        await store.close()
    found = [span.attributes for span in spans if semconv.POLICY in span.attributes]
    return [(attributes.get(semconv.NODE), attributes[semconv.POLICY]) for attributes in found]


@pytest.fixture(scope="module")
def whole(leyden: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    runs = tmp_path_factory.mktemp("runs")
    done = leyden(*training(runs, "whole"))
    assert done.returncode == 0, done.stderr
    return runs / "whole"


async def test_every_call_is_answered_by_its_agents_own_policy(whole: Path) -> None:
    found = await calls(whole / "store.db")
    assert set(found) == {("planner", "planner"), ("reporter", "reporter")}
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    report = json.loads((whole / "report.json").read_text())
    for name in NAMES:
        trained = [line[f"{name}/transitions_trained"] for line in lines]
        assert report["policies"][name]["transitions"] == sum(trained)
        assert report["policies"][name]["steps"] == sum(map(bool, trained)) > 0
    for line in lines:
        assert line["transitions"] == sum(line[f"{name}/transitions"] for name in NAMES)
        assert line["transitions_trained"] == sum(line[f"{name}/transitions_trained"] for name in NAMES) > 0
        for name in NAMES:
            assert line[f"{name}/served_trained_gap"] < 1e-4
            assert line.get(f"{name}/importance_ratio_deviation", 0.0) < 1e-3, "each learns from what it drew itself"


def test_both_policies_learn_and_lie_in_folders_of_their_own(whole: Path, leyden: Callable[..., Any]) -> None:
    begun = weights(CALCULATOR / "policy")
    planner, reporter = (weights(whole / "policy" / name) for name in NAMES)
    assert not same(planner, begun)
    assert not same(reporter, begun)
    assert not same(planner, reporter)
    exported = whole.parent / "exported"
    done = leyden("models", "export", "whole", "1", str(exported), "--runs", str(whole.parent))
    assert done.returncode == 2
    assert "not kept" in done.stderr
    done = leyden("models", "export", "whole", str(exported), "--runs", str(whole.parent))
    assert done.returncode == 0, done.stderr
    assert same(weights(exported / "planner"), planner)
    assert same(weights(exported / "reporter"), reporter)


@pytest.mark.campaign
def test_a_killed_run_goes_on_with_both_and_ends_bit_for_bit_as_the_whole_one(
    whole: Path, leyden: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    process = start(*training(tmp_path, "killed"))
    wait_for_step(run, 2, process)
    kill(process)
    assert len(trained_steps(run)) < STEPS or not (run / "report.json").exists()
    done = leyden("train", "--resume", "killed", "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    assert trained_steps(run) == list(range(1, STEPS + 1))
    for name in NAMES:
        assert same(weights(run / "policy" / name), weights(whole / "policy" / name))


def test_a_run_goes_back_to_an_earlier_version_of_both(whole: Path, leyden: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "whole")
    done = leyden("models", "rollback", "whole", str(STEPS - 1), "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    exported = tmp_path / "exported"
    done = leyden("models", "export", "whole", "last", str(exported), "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "whole" / "checkpoints" / f"step-{STEPS - 1:08d}"
    assert all(same(weights(exported / name), weights(checkpoint / name)) for name in NAMES)
    done = leyden("train", "--resume", "whole", "--runs", str(tmp_path), "--quiet")
    assert done.returncode == 0, done.stderr
    assert trained_steps(tmp_path / "whole") == list(range(1, STEPS + 1))
