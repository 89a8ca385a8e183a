import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from leyden.core.errors import PolicyError
from leyden.core.policy.checkpoints.export import export_policy
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy

FILES: Any = safetensors.torch
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer with a chat template, as files."""
    import tokenizers
    import transformers

    library: Any = tokenizers
    words = library.Tokenizer(library.models.WordLevel({"<unk>": 0, "hello": 1, "world": 2}, unk_token="<unk>"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    fast: Any = transformers.PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "policy"
    write_tokenizer(target)
    module: Any = tiny_policy(shape=TinyShape()).module
    module.save_pretrained(target)
    return target


def test_a_folder_is_loaded_in_float32_ready_to_train(folder: Path) -> None:
    model = PolicyModel.load(folder)

    assert model.dtype == torch.float32
    assert (model.context_length, model.vocab_size, model.device.type) == (512, 64, "cpu")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.module.training
    assert score(model, [1, 2, 3]) == pytest.approx(score(tiny_policy(), [1, 2, 3]), abs=1e-6)


def test_a_bfloat16_folder_is_loaded_into_float32_weights(folder: Path, tmp_path: Path) -> None:
    module: Any = tiny_policy().module.to(torch.bfloat16)
    module.save_pretrained(tmp_path / "half")

    assert PolicyModel.load(tmp_path / "half", precision="bfloat16").dtype == torch.float32


def test_weights_are_the_state_dict_with_a_tied_head_once() -> None:
    tied, untied = tiny_policy(), tiny_policy(shape=TinyShape(tied=False))

    assert set(untied.weights()) == set(untied.module.state_dict())
    assert set(tied.module.state_dict()) - set(tied.weights()) == {"lm_head.weight"}
    assert not any(tensor.requires_grad for tensor in tied.weights().values())


def test_weights_follow_an_update_and_make_another_model_the_same() -> None:
    trained, other = tiny_policy(), tiny_policy(seed=1)
    Updater(trained, UpdateConfig(learning_rate=1e-3)).step(synthetic_rollouts(3, 64))

    other.load_weights(trained.weights())

    assert score(other, [1, 2, 3]) == score(trained, [1, 2, 3])
    assert score(other, [1, 2, 3]) != score(tiny_policy(), [1, 2, 3])


def test_an_exported_folder_is_plain_hugging_face(folder: Path, tmp_path: Path) -> None:
    import transformers

    library: Any = transformers
    model = PolicyModel.load(folder)
    Updater(model, UpdateConfig(learning_rate=1e-3)).step(synthetic_rollouts(3, 64))
    target = tmp_path / "runs" / "trained"
    (folder / "README.md").write_text("a tiny policy", encoding="utf-8")

    for _ in range(2):
        assert export_policy(model, folder, target) == target

    loaded = library.AutoModelForCausalLM.from_pretrained(target)
    tokenizer = library.AutoTokenizer.from_pretrained(target)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(input_ids=ids).logits, model.module(input_ids=ids).logits)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello world"}], tokenize=False) == "hello world"
    assert (target / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (target / "README.md").exists()
    assert [path.name for path in target.parent.iterdir()] == ["trained"]


def test_an_export_that_fails_leaves_the_old_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PolicyModel.load(folder)
    target = export_policy(model, folder, tmp_path / "trained")
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(model.module, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        export_policy(model, folder, target)

    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "trained"]


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def broken_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not weights at all")


def incomplete_weights(folder: Path) -> None:
    weights = FILES.load_file(folder / "model.safetensors")
    FILES.save_file(dict(list(weights.items())[1:]), folder / "model.safetensors", metadata={"format": "pt"})


def unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-model"}), encoding="utf-8")


def no_causal_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}), encoding="utf-8")


@pytest.mark.parametrize(
    "damage", [no_config, no_weights, broken_weights, incomplete_weights, unknown_architecture, no_causal_model]
)
def test_a_folder_that_cannot_be_loaded_is_one_clear_line(folder: Path, damage: Any) -> None:
    damage(folder)

    with pytest.raises(PolicyError, match=str(folder)) as caught:
        PolicyModel.load(folder)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [str, Path])
def test_a_missing_folder_is_named(tmp_path: Path, form: Any) -> None:
    with pytest.raises(PolicyError, match=f"there is no policy folder {tmp_path}/missing"):
        PolicyModel.load(form(tmp_path / "missing"))
