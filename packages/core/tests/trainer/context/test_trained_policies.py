"""The policy as a run began, beside the policy that it trained."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from leyden.core.policy.options import LoraOptions
from leyden.core.testing.policies import TinyShape, tiny_policy, with_adapters
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.trained_policies import TrainedPolicies


def policies(folder: Path) -> TrainedPolicies:
    module: Any = tiny_policy(shape=TinyShape(vocab=40, layers=1)).module
    module.save_pretrained(folder)
    return TrainedPolicies(RunConfig(name="r", agent="a", policy=str(folder)), lambda _: nullcontext())


def test_the_initial_policy_is_loaded_again_and_the_trained_one_stays(tmp_path: Path) -> None:
    trained = policies(tmp_path)
    model = trained.load("policy")
    first = {name: value.clone() for name, value in model.weights().items()}
    for parameter in model.parameters():
        parameter.data += 1.0
        parameter.grad = torch.zeros_like(parameter)
    initial = trained.initial("policy")
    assert all(torch.equal(value, first[name]) for name, value in initial.weights().items())
    assert all(not torch.equal(value, first[name]) for name, value in model.weights().items())
    assert trained.loaded("policy") is model
    assert all(parameter.grad is None for parameter in model.parameters())


def test_with_adapters_the_initial_policy_is_the_same_module_without_them(tmp_path: Path) -> None:
    trained = policies(tmp_path)
    model = trained.load("policy")
    first = {name: value.clone() for name, value in model.weights().items()}
    with_adapters(model, LoraOptions(rank=2))
    initial = trained.initial("policy")
    assert initial.module is model.module
    assert all(torch.equal(value, first[name]) for name, value in initial.weights().items())
    assert any(not torch.equal(value, first[name]) for name, value in model.weights().items())
