"""What is reckoned from a configuration, against the model itself and what torch keeps for the backward pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leyden.core.errors import PolicyError
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.size import PolicySize
from leyden.core.testing.policies import TinyShape, tiny_policy

SHAPE = TinyShape(hidden=64, intermediate=192, layers=3, heads=4, key_value_heads=2, head_dim=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    module: Any = tiny_policy(shape=SHAPE).module
    module.config.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_loading_them(tmp_path: Path, tied: bool) -> None:
    module: Any = tiny_policy(shape=TinyShape(tied=tied)).module
    module.config.save_pretrained(tmp_path)
    assert PolicySize.of(tmp_path).parameters == sum(p.numel() for p in module.parameters())


def test_what_an_engine_keeps_of_a_token(folder: Path) -> None:
    module: Any = tiny_policy(shape=SHAPE).module
    cache = module(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    kept = sum(tensor.numel() * 4 for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert PolicySize.of(folder).key_values * 3 == kept


WIDE = TinyShape(hidden=128, intermediate=96, layers=2, heads=8, key_value_heads=8, head_dim=32)


@pytest.mark.parametrize("shape", [SHAPE, WIDE])
def test_activations_are_what_torch_keeps_within_a_third(tmp_path: Path, shape: TinyShape) -> None:
    module: Any = tiny_policy(shape=shape).module
    module.config.save_pretrained(tmp_path)
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    tokens = 128
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        output = module.model(input_ids=torch.ones((1, tokens), dtype=torch.long), use_cache=False)
    assert output.last_hidden_state.requires_grad
    ratio = PolicySize.of(tmp_path).activations(tokens) / sum(kept.values())
    assert 2 / 3 < ratio < 4 / 3


def test_adapters_are_counted(folder: Path) -> None:
    model = tiny_policy(shape=SHAPE)
    model.adapt(LoraOptions(rank=4))
    assert PolicySize.of(folder).adapters(4) == sum(p.numel() for p in model.parameters())


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match="cannot read the configuration") as caught:
        PolicySize.of(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("./polcy", r"there is no policy folder \./polcy; did you mean \./policy\?"),
        ("polcy", r"there is no policy folder polcy; did you mean policy\?"),
        ("runs/polcy", r"there is no policy folder runs/polcy; did you mean runs/policy\?"),
        ("./x", r"there is no policy folder \./x$"),
        ("a/b/c", "there is no policy folder a/b/c$"),
        *(
            (path, rf"no policy folder {path} \(leyden policies fetch smollm2-135m --to {path} makes it\)$")
            for path in ("policies/smollm2-135m", "smollm2-135m", "a/b/smollm2-135m")
        ),
        ("policy/config.json", "policy/config.json is a file, not a policy folder: give its folder, policy"),
        ("empty", "empty is not a policy folder: it has no config.json"),
    ],
)
def test_a_mistyped_folder_is_named_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("policy", "runs/policy", "empty"):
        Path(folder).mkdir(parents=True)
    for folder in ("policy", "runs/policy"):
        Path(folder, "config.json").write_text("{}")
    with pytest.raises(PolicyError, match=says):
        PolicySize.of(given)
