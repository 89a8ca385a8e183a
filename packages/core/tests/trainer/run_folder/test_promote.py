"""`leyden models promote`: which version a finished run keeps, in its folder, its report and by its name."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.cli.main import run
from leyden.core.policy.checkpoints.checkpoint import save_checkpoint
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models, find_version
from leyden.core.trainer.run_folder.report import HeldOutResult, KeptVersion, RunReport
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile

IDS = [5, 1, 40, 7, 7, 23, 60, 2, 33, 9]


@pytest.fixture
def finished(tmp_path: Path) -> tuple[RunFolder, dict[int, list[float]]]:
    """A run of two steps that keeps version 1; and the log-probabilities of its versions."""
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, "{{ messages }}")
    held_out = (EvaluationSet(name="val", source="val.jsonl"),)
    config = RunConfig(name="one", agent="a", policy=str(base), held_out=held_out)
    folder = RunFolder.create(tmp_path / "runs", config, [{"q": 1}], {"val": [{"q": 2}, {"q": 3}]})
    updater = Updater(PolicyModel.load(base), UpdateConfig(learning_rate=1e-2))
    scores = {0: score(updater.model, IDS)}
    fields: dict[str, Any] = {"run": "one", "created": 1.0, "algorithm": "lightning_rl", "seed": 0}
    file = VersionFile(folder.path)
    file.append(ModelVersion(version=0, parent=None, policy=str(base), held_out={"val": rewards(0.0, 0.0)}, **fields))
    for number, held in ((1, {"val": rewards(1.0, 1.0)}), (2, {"val": rewards(1.0, 0.0)})):
        updater.step(synthetic_rollouts(4, 400, seed=number))
        weights = str(save_checkpoint(folder.checkpoints, number, updater, {"step": number}).relative_to(folder.path))
        scores[number] = score(updater.model, IDS)
        file.append(
            ModelVersion(version=number, parent=number - 1, policy=str(base), weights=weights, held_out=held, **fields)
        )
    result = HeldOutResult(tasks=2, before=0.0, after=1.0, sampled_after=0.9)
    kept = KeptVersion(version=1, success=1.0, why="the best of 2 evaluations on val, with 100.0 %")
    after: dict[str, Any] = {"success_after": 1.0, "sampled_after": 0.9}
    folder.write_report(RunReport(name="one", seed=0, held_out={"val": result}, kept=kept, **after))
    return folder, scores


def rewards(*values: float) -> Evaluation:
    """An evaluation with one reward for each task."""
    return Evaluation(success=sum(values) / len(values), rewards={str(at): own for at, own in enumerate(values)})


def promote(folder: RunFolder, version: str) -> int:
    return run(["models", "promote", "one", version, "--runs", str(folder.path.parent)])


def test_the_promoted_version_is_kept_under_the_name_of_the_run(
    finished: tuple[RunFolder, dict[int, list[float]]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, scores = finished

    assert promote(folder, "2") == 0

    assert "run one now keeps version 2" in capsys.readouterr().out
    assert find_version(folder.path.parent, "one")[1].version == 2
    assert score(PolicyModel.load(folder.policy), IDS) == pytest.approx(scores[2], abs=1e-6)
    assert not folder.last_policy.exists()
    report = json.loads(folder.report_file.read_text())
    assert report["kept"] == {"version": 2, "success": 0.5, "why": "chosen with leyden models promote"}
    assert (report["success_after"], report["sampled_after"]) == (0.5, None)
    assert (report["held_out"]["val"]["before"], report["held_out"]["val"]["after"]) == (0.0, 0.5)


def test_the_last_version_stays_beside_an_earlier_one(finished: tuple[RunFolder, dict[int, list[float]]]) -> None:
    folder, scores = finished

    assert promote(folder, "0") == 0

    assert score(PolicyModel.load(folder.policy), IDS) == pytest.approx(scores[0], abs=1e-6)
    assert score(PolicyModel.load(folder.last_policy), IDS) == pytest.approx(scores[2], abs=1e-6)
    kept = json.loads(folder.report_file.read_text())["kept"]
    assert kept["why"] == "chosen with leyden models promote; the last one, 2, is in policy-last/"


def test_what_cannot_be_promoted_is_one_line(
    finished: tuple[RunFolder, dict[int, list[float]]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished

    def refused(version: str) -> str:
        assert promote(folder, version) == 2
        return capsys.readouterr().err

    assert "version 1 is already the one that run 'one' keeps" in refused("1")
    assert "has no version '7'" in refused("7")
    with folder.locked():
        assert "is being trained by another process" in refused("2")
    file = VersionFile(folder.path)
    versions = list(file.read().values())
    file.path.unlink()
    for one in versions:
        file.append(msgspec.structs.replace(one, weights=None))
    assert "weights of version 2 of run 'one' are not kept" in refused("2")
    folder.report_file.unlink()
    assert "is not finished" in refused("1")
    assert Models.open(folder.path.parent, "one").kept == 2
