import numpy as np
import pytest
import torch

from leyden.core.data.transition import Transition
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.probe import changed, fingerprint, recomputed, shake
from leyden.core.testing.factories import transition
from leyden.core.testing.policies import tiny_policy

PROMPT, ANSWER = [3, 1, 4, 1, 5], [9, 2, 6]


def call(model: PolicyModel, shift: float = 0.0) -> Transition:
    logprobs = score(model, PROMPT + ANSWER)[len(PROMPT) - 1 :]
    return transition(PROMPT, ANSWER, (value + shift for value in logprobs))


def test_one_changed_weight_is_seen() -> None:
    model = tiny_policy()
    before = fingerprint(model)
    assert changed(before, model) == (0, len(before))
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[7] += 1e-3
    assert changed(before, model) == (1, len(before))


@pytest.mark.parametrize("lora", [False, True])
def test_a_shaken_policy_computes_something_else(lora: bool) -> None:
    model = tiny_policy()
    if lora:
        model.adapt(LoraOptions(rank=2))
    before = score(model, PROMPT)
    shake(model, 0.5)
    assert max(abs(a - b) for a, b in zip(before, score(model, PROMPT), strict=True)) > 0.01


def test_recomputing_finds_how_far_a_record_is_off() -> None:
    model = tiny_policy()
    assert np.abs(recomputed(model, [call(model)])).max() < 1e-5
    off = recomputed(model, [call(model), call(model, shift=0.25)])
    assert off == pytest.approx([0.0] * 3 + [0.25] * 3, abs=1e-5)
