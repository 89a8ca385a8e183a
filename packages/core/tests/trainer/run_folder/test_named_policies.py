"""What `--policy-a` and `--policy-b` name: folders, hub names, and versions of runs."""

from pathlib import Path
from typing import Any

import pytest

from leyden.core.policy.checkpoints.checkpoint import save_checkpoint
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.named_policies import NamedPolicy, policy_sources
from leyden.core.trainer.run_folder.report import KeptVersion, RunReport
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

IDS = [5, 1, 40, 7, 7, 23, 60, 2, 33, 9]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(params=[None, 3], ids=["weights", "adapters"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, list[float]]:
    """A run of one update: folder of runs, the policy that it began with, and log-probabilities of version 1."""
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, TEMPLATE)
    lora = None if request.param is None else LoraOptions(rank=request.param)
    settings = {} if lora is None else {"lora": {"rank": lora.rank}}
    config = RunConfig(name="small", agent="a", policy=str(base), algorithm_config=settings)
    folder = RunFolder.create(tmp_path / "runs", config, [{"q": 1}], {})
    updater = Updater(PolicyModel.load(base), UpdateConfig(learning_rate=1e-2, lora=lora))
    updater.step(synthetic_rollouts(4, 400, seed=1))
    saved = save_checkpoint(folder.checkpoints, 1, updater, {"step": 1})
    for number, weights in ((0, None), (1, str(saved.relative_to(folder.path)))):
        VersionFile(folder.path).append(
            ModelVersion(
                run="small",
                version=number,
                parent=number - 1 if number else None,
                created=1.0,
                algorithm="lightning_rl",
                seed=0,
                policy=str(base),
                weights=weights,
            )
        )
    return folder.path.parent, base, score(updater.model, IDS)


def test_the_weights_of_a_version_are_in_a_folder_that_is_removed_afterwards(
    trained: tuple[Path, Path, list[float]],
) -> None:
    runs, base, logprobs = trained
    with policy_sources({"--policy-a": "small:0", "--policy-b": "small:1", "--other": None}, runs) as (a, b, other):
        assert (a, other) == (NamedPolicy(str(base), 0), None)
        assert b is not None and (Path(b.source).name, b.version) == ("small-1", 1)
        assert score(PolicyModel.load(b.source), IDS) == pytest.approx(logprobs, abs=1e-6)
    assert not Path(b.source).exists()


def test_one_version_for_both_is_written_once(trained: tuple[Path, Path, list[float]]) -> None:
    runs, *_ = trained
    with policy_sources({"--policy-a": "small", "--policy-b": "small"}, runs) as (a, b):
        assert a == b


def test_the_kept_version_of_a_finished_run_is_its_folder(trained: tuple[Path, Path, list[float]]) -> None:
    runs, *_ = trained
    run = RunFolder(runs / "small")
    run.policy.mkdir()
    (run.policy / "config.json").write_text("{}")
    kept = KeptVersion(version=1, success=0.5, why="the last one")
    run.write_report(RunReport(name="small", seed=0, steps=1, seconds=1.0, held_out={}, kept=kept, seconds_by_phase={}))
    with policy_sources({"--policy-a": "small", "--policy-b": "small:1"}, runs) as found:
        assert found == [NamedPolicy(str(run.policy), 1)] * 2


def test_other_names_are_those_of_models(tmp_path: Path) -> None:
    named = {"--policy-a": "owner/model", "--policy-b": str(tmp_path)}
    with policy_sources(named, tmp_path) as found:
        assert found == [NamedPolicy("owner/model"), NamedPolicy(str(tmp_path))]
