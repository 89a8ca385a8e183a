"""`leyden models export`: a plain folder for anything, of adapters also alone, with or without the initial policy."""

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from leyden.core.cli.main import run
from leyden.core.data.route import POLICY
from leyden.core.policy.checkpoints.checkpoint import save_checkpoint
from leyden.core.policy.checkpoints.export import export_policy
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models, load_version
from leyden.core.trainer.run_folder.report import KeptVersion, RunReport
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile

LIBRARY: Any = transformers
PEFT: Any = peft
IDS = [5, 1, 40, 7, 7, 23, 60, 2, 33, 9]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def log_probabilities(module: Any) -> list[float]:
    """Of `IDS` after the first, by plain transformers."""
    with torch.no_grad():
        logprobs = module.eval()(input_ids=torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    return [float(logprobs[at, token]) for at, token in enumerate(IDS[1:])]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[float], list[float]]:
    """A run of two updates of adapters: its folder, and the log-probabilities of its versions 0 and 2."""
    return trained_run(tmp_path, tied=request.param, lora=LoraOptions(rank=3, alpha=5.0))


def trained_run(tmp_path: Path, *, tied: bool, lora: LoraOptions | None) -> tuple[Path, list[float], list[float]]:
    """Train a run of two updates; it is not finished, and has no policy of its own yet."""
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400, tied=tied)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, TEMPLATE)
    adapters = {} if lora is None else {"lora": {"rank": lora.rank, "alpha": lora.alpha}}
    settings = {**adapters, "learning_rate": 1e-2}
    config = RunConfig(name="adapted", agent="a", policy=str(base), algorithm_config=settings)
    folder = RunFolder.create(tmp_path / "runs", config, [{"q": 1}], {})
    updater = Updater(PolicyModel.load(base), UpdateConfig(learning_rate=1e-2, lora=lora))
    versions = VersionFile(folder.path)
    fields: dict[str, Any] = {"run": "adapted", "created": 1.0, "algorithm": "lightning_rl", "seed": 0}
    versions.append(ModelVersion(version=0, parent=None, policy=str(base), **fields))
    for number in (1, 2):
        updater.step(synthetic_rollouts(4, 400, seed=number))
        saved = save_checkpoint(folder.checkpoints, number, updater, {"step": number})
        weights = str(saved.relative_to(folder.path))
        versions.append(ModelVersion(version=number, parent=number - 1, policy=str(base), weights=weights, **fields))
    return folder.path, score(PolicyModel.load(base), IDS), score(updater.model, IDS)


def test_a_version_of_adapters_is_exported_merged_and_as_adapters_alone(
    trained: tuple[Path, list[float], list[float]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, first, last = trained
    assert max(abs(a - b) for a, b in zip(first, last, strict=True)) > 0.1
    runs, out = str(folder.parent), tmp_path / "out"

    assert run(["models", "export", "adapted", "last", str(out / "merged"), "--runs", runs, "--json"]) == 0

    assert json.loads(capfd.readouterr().out) == {"run": "adapted", "version": 2, "folder": str(out / "merged")}
    merged = LIBRARY.AutoModelForCausalLM.from_pretrained(out / "merged")
    assert not [name for name in merged.state_dict() if "lora" in name or "base_layer" in name]
    assert log_probabilities(merged) == pytest.approx(last, abs=1e-5)
    assert LIBRARY.AutoTokenizer.from_pretrained(out / "merged").chat_template == TEMPLATE
    plain = LIBRARY.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert log_probabilities(PEFT.PeftModel.from_pretrained(plain, out / "merged-adapter")) == pytest.approx(
        last, abs=1e-5
    )
    assert {path.name for path in out.iterdir()} == {"merged", "merged-adapter"}


def test_version_0_of_adapters_is_the_policy_that_was_given(
    trained: tuple[Path, list[float], list[float]], tmp_path: Path
) -> None:
    folder, first, _ = trained
    assert run(["models", "export", "adapted", "0", str(tmp_path / "zero"), "--runs", str(folder.parent)]) == 0
    given = LIBRARY.AutoModelForCausalLM.from_pretrained(tmp_path / "zero")
    assert log_probabilities(given) == pytest.approx(first, abs=1e-5)


def test_an_adapter_folder_that_is_there_is_not_written_over(
    trained: tuple[Path, list[float], list[float]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, *_ = trained
    mine = tmp_path / "merged-adapter" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert run(["models", "export", "adapted", "2", str(tmp_path / "merged"), "--runs", str(folder.parent)]) == 2
    assert "merged-adapter already exists; nothing was written" in capfd.readouterr().err
    assert mine.read_text() == "mine"
    assert not (tmp_path / "merged").exists()


def finished_on_another_machine(tmp_path: Path, kept: int, lora: LoraOptions | None) -> tuple[Path, list[float]]:
    """A run that has finished, without the policy that it began with, and the log-probabilities of version 2."""
    folder, _, last = trained_run(tmp_path, tied=True, lora=lora)
    models = Models.open(folder.parent, "adapted")
    export_policy(load_version(models, models.find("2"), POLICY), tmp_path / "base", folder / "policy")
    report = RunReport(name="adapted", seed=0, kept=KeptVersion(version=kept, success=None, why="the last one"))
    models.folder.write_report(report)
    shutil.rmtree(tmp_path / "base")
    return folder, last


@pytest.mark.parametrize("which", ["kept", "2"])
@pytest.mark.parametrize("lora", [None, LoraOptions(rank=3, alpha=5.0)], ids=["weights", "adapters"])
def test_the_kept_version_is_exported_without_the_initial_policy(
    tmp_path: Path, which: str, lora: LoraOptions | None
) -> None:
    folder, last = finished_on_another_machine(tmp_path, 2, lora)
    out = tmp_path / "out"
    assert run(["models", "export", "adapted", which, str(out / "two"), "--runs", str(folder.parent)]) == 0
    exported = LIBRARY.AutoModelForCausalLM.from_pretrained(out / "two")
    assert log_probabilities(exported) == pytest.approx(last, abs=1e-5)
    assert LIBRARY.AutoTokenizer.from_pretrained(out / "two").chat_template == TEMPLATE
    assert {path.name for path in out.iterdir()} == ({"two"} if lora is None else {"two", "two-adapter"})


def test_any_version_of_whole_weights_is_exported_without_the_initial_policy(tmp_path: Path) -> None:
    folder, last = finished_on_another_machine(tmp_path, 1, None)  # its policy's weights are not those of version 2
    assert run(["models", "export", "adapted", "2", str(tmp_path / "two"), "--runs", str(folder.parent)]) == 0
    exported = LIBRARY.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    assert log_probabilities(exported) == pytest.approx(last, abs=1e-5)


@pytest.mark.parametrize(
    ("version", "lora"), [("0", None), ("1", LoraOptions(rank=3, alpha=5.0))], ids=["initial", "adapters"]
)
def test_a_version_that_needs_the_initial_policy_says_so(
    tmp_path: Path, version: str, lora: LoraOptions | None, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished_on_another_machine(tmp_path, 2, lora)
    out = tmp_path / "out"
    assert run(["models", "export", "adapted", version, str(out), "--runs", str(folder.parent)]) == 2
    assert f"there is no policy folder {tmp_path}/base: the run began with this path" in capfd.readouterr().err
    assert not out.exists()
