"""`leyden models export` of a run that trained adapters: a plain folder for anything, and the adapters alone."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from leyden.core.cli.main import run
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
    base = tmp_path / "base"
    module: Any = tiny_policy(shape=TinyShape(vocab=400, tied=request.param)).module
    module.save_pretrained(base)
    save_tiny_tokenizer(base, TEMPLATE)
    lora = LoraOptions(rank=3, alpha=5.0)
    settings = {"lora": {"rank": 3, "alpha": 5.0}, "learning_rate": 1e-2}
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
