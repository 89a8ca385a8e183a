"""A run that is evaluated while it trains, and what `leyden models` does with the versions that it left."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from leyden.core.data.run import Run
from leyden.core.store.open import open_store

FILES: Any = safetensors.torch

pytestmark = [pytest.mark.timeout(600)]

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def evaluated(
    leyden: Leyden,
    train_arguments: Callable[..., list[str]],
    few_held_out: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a run of three steps, evaluated after each."""
    runs = tmp_path_factory.mktemp("runs")
    more = ["--steps", "3", "--val", str(few_held_out), "--eval-every", "1", "--keep-checkpoints", "9"]
    more += ["--experiment", "watching"]
    done = leyden(*train_arguments(runs, "watched", *more), "--tracker", "tensorboard")
    assert done.returncode == 0, done.stderr
    return runs / "watched"


def lines(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def own_sampling(run: Path) -> list[tuple[int, float]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["success"]) for line in found if "success" in line]


def test_each_version_is_evaluated_once_and_the_best_is_kept(evaluated: Path) -> None:
    report = json.loads((evaluated / "report.json").read_text())
    scores = own_sampling(evaluated)
    assert [step for step, _ in scores] == [0, 1, 2, 3]
    best = max(scores, key=lambda score: score[1])
    assert (report["kept"]["version"], report["kept"]["success"]) == best
    assert report["success_after"] == scores[-1][1]
    assert "the best of 4" in report["kept"]["why"]
    weights = FILES.load_file(evaluated / "policy" / "model.safetensors")
    assert (evaluated / "policy-last").exists() == (best[0] != 3)
    if best[0]:
        kept = FILES.load_file(evaluated / f"checkpoints/step-0000000{best[0]}/model.safetensors")
        assert all(torch.equal(weights[name], kept[name]) for name in kept)


def test_versions_are_listed_compared_and_exported(evaluated: Path, leyden: Leyden, tmp_path: Path) -> None:
    runs = ["--runs", str(evaluated.parent)]
    listed = lines(leyden("models", "list", "watched", "--json", *runs))
    assert [(row["version"], row["parent"]) for row in listed] == [(0, None), (1, 0), (2, 1), (3, 2)]
    assert sum(row["kept"] for row in listed) == 1
    (overview,) = lines(leyden("models", "list", "--json", *runs))
    assert (overview["run"], overview["experiment"], overview["last"]) == ("watched", "watching", 3)
    (compared,) = lines(leyden("models", "compare", "watched:0", "watched:2", "--json", *runs))
    paired = compared["held_out"]["few"]
    assert paired["tasks"] == paired["wins"] + paired["losses"] + paired["ties"] == 8
    scores = dict(own_sampling(evaluated))
    assert (paired["a"], paired["b"]) == (pytest.approx(scores[0]), pytest.approx(scores[2]))
    shown = leyden("models", "compare", "watched:0", "watched:2", *runs)
    assert "wins" in shown.stdout
    (exported,) = lines(leyden("models", "export", "watched", "2", str(tmp_path / "second"), "--json", *runs))
    assert exported["version"] == 2
    there = FILES.load_file(tmp_path / "second" / "model.safetensors")
    kept = FILES.load_file(evaluated / "checkpoints/step-00000002/model.safetensors")
    assert all(torch.equal(there[name], kept[name]) for name in kept)
    refused = leyden("models", "export", "watched", "2", str(tmp_path / "second"), *runs)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_a_run_goes_on_from_where_it_was_taken_back_to_with_rollouts_of_its_own(
    evaluated: Path, leyden: Leyden
) -> None:
    runs = ["--runs", str(evaluated.parent)]
    before = asyncio.run(rollout_ids(evaluated))
    done = leyden("models", "rollback", "watched", "1", *runs)
    assert "continue with: leyden train --resume watched" in done.stdout, done.stderr
    assert [step for step, _ in own_sampling(evaluated)] == [0, 1]
    assert [record.status for record in asyncio.run(records(evaluated, "watching"))] == ["stopped"]
    again = leyden("train", "--resume", "watched", "--steps", "2", "--quiet", *runs)
    assert again.returncode == 0, again.stderr
    new = asyncio.run(rollout_ids(evaluated)) - before
    assert new
    assert all(rollout.startswith("r1-") for rollout in new)
    assert [step for step, _ in own_sampling(evaluated)] == [0, 1, 2]
    listed = lines(leyden("models", "list", "watched", "--json", *runs))
    assert [row["version"] for row in listed] == [0, 1, 2]
    assert json.loads((evaluated / "report.json").read_text())["steps"] == 2
    assert (evaluated / "set_aside/1/checkpoints/step-00000003/model.safetensors").exists()


def test_a_run_names_its_experiment(evaluated: Path, leyden: Leyden, tmp_path: Path) -> None:
    runs = ["--runs", str(evaluated.parent)]
    (record,) = asyncio.run(records(evaluated, "watching"))
    assert (record.name, record.experiment, record.config["experiment"]) == ("watched", "watching", "watching")
    assert asyncio.run(records(evaluated, "another")) == []
    (shown,) = lines(leyden("models", "list", "--experiment", "watching", "--json", *runs))
    assert shown["run"] == "watched"
    assert "of experiment watching" in leyden("show", "watched", *runs).stdout
    exported = leyden("export", "watched", "--what", "runs", "--format", "jsonl", "--to", str(tmp_path / "out"), *runs)
    assert exported.returncode == 0, exported.stderr
    assert [json.loads(line)["experiment"] for line in (tmp_path / "out/runs.jsonl").read_text().splitlines()] == [
        "watching"
    ]


async def records(run: Path, experiment: str) -> list[Run]:
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        return (await store.query_runs(experiment=experiment)).items
    finally:
        await store.close()


async def rollout_ids(run: Path) -> set[str]:
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        return {rollout.rollout_id for rollout in await store.query_rollouts()}
    finally:
        await store.close()
