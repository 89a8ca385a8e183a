"""Whole runs with `--device cuda`."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from leyden.core.cli.main import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator_langgraph"
FILES: Any = safetensors.torch


def train(runs: Path, name: str, *options: str, policy: Path = EXAMPLE / "policy") -> int:
    return run(
        [
            *("train", f"{EXAMPLE / 'agent.py'}:agent", "--tasks", str(EXAMPLE / "train.jsonl")),
            *("--reward", f"{EXAMPLE / 'reward.py'}:score", "--policy", str(policy)),
            *("--runs", str(runs), "--name", name, "--device", "cuda", "--set", "learning_rate=6e-4", "--json"),
            *options,
        ]
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("**/step-00000004/model.safetensors")
    return FILES.load_file(path)


def test_a_run_trains_on_the_gpu_and_goes_on_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "straight", "--steps", "4", "--deterministic") == 0
    assert train(tmp_path, "parts", "--steps", "2", "--deterministic") == 0
    assert run(["train", "--resume", "parts", "--runs", str(tmp_path), "--steps", "4", "--json"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    straight, parts = weights(tmp_path / "straight"), weights(tmp_path / "parts")
    assert straight.keys() == parts.keys()
    assert all(torch.equal(straight[name], parts[name]) for name in straight)


def test_a_policy_too_large_for_the_gpu_is_refused_before_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "large"
    policy.mkdir()
    for file in (EXAMPLE / "policy").iterdir():
        (policy / file.name).write_bytes(file.read_bytes())
    settings = json.loads((policy / "config.json").read_text())
    del settings["layer_types"]
    settings |= {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 200}
    (policy / "config.json").write_text(json.dumps(settings))
    assert train(tmp_path / "runs", "large", "--steps", "1", policy=policy) == 1
    error = capsys.readouterr().err
    assert "too large" in error
    assert "the GPU has" in error
