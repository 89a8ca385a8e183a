"""A step's gradient is the same however its tokens are read: drawn at random, for every loss, all weights and adapters.

In float64 to 1e-10, in float32 to 1e-5, both relative to each call read by itself, one at a time.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leyden.core.policy.critic.options import CRITICS
from leyden.core.policy.critic.value_loss import ValueTarget
from leyden.core.policy.critic.value_update import ActorCritic
from leyden.core.policy.losses.registry import LOSSES
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts, with_adapters
from leyden.core.testing.tiny_models import tiny_model

SHAPE = RolloutShape(system=20, question=3, calls=(4, 3), observation=4)
STEADY = {"learning_rate": 0.0, "max_grad_norm": 1e9}
ONE_BY_ONE = {"token_budget": 1, "merge": False, "share_prefix": False}
LORA = LoraOptions(rank=3, alpha=5.0)
EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Reading:
    """What is trained, in which order, and how it is read."""

    trained: list[WeightedTransition]
    shuffled: list[WeightedTransition]
    way: dict[str, Any]


@st.composite
def readings(draw: st.DrawFn, together: int) -> Reading:
    count, seed = draw(st.integers(2, 5)), draw(st.integers(0, 1000))
    share = 0.0 if together > 1 else draw(st.sampled_from([0.0, 0.4, 1.0]))
    trained = synthetic_rollouts(count, 61, seed, SHAPE, single_call_share=share)
    units = [trained[at : at + together] for at in range(0, len(trained), together)]
    random.Random(seed).shuffle(units)
    way = {
        "token_budget": draw(st.sampled_from([None, 100_000, 100, 40])),
        "merge": draw(st.booleans()),
        "share_prefix": draw(st.booleans()),
    }
    return Reading(trained, list(chain.from_iterable(units)), way)


def policy(dtype: torch.dtype, *, lora: bool, seed: int = 0) -> PolicyModel:
    """gpt2, because its layer norms stay in float64."""
    model = PolicyModel(tiny_model("gpt2", seed).to(dtype), f"gpt2-{seed}")
    return with_adapters(model, LORA) if lora else model


def gradient(updaters: Sequence[Any]) -> Tensor:
    found = chain.from_iterable(of.parameters() for of in updaters)
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in found])


def stepped(dtype: torch.dtype, lora: bool, trained: list[WeightedTransition], values: dict[str, Any]) -> Tensor:
    updater = Updater(policy(dtype, lora=lora), UpdateConfig(**STEADY, **values, lora=LORA if lora else None))
    if updater.reference is not None and not lora:
        updater.reference.load_weights(policy(dtype, lora=False, seed=1).weights())
    updater.step(trained)
    return gradient([updater.model])


def agree(found: Tensor, expected: Tensor, exact: float) -> bool:
    return bool((found - expected).square().sum() <= exact**2 * expected.square().sum())


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("loss", LOSSES.names())
@settings(max_examples=3, derandomize=True)
@given(data=st.data())
def test_no_reading_changes_the_gradient(loss: str, lora: bool, dtype: torch.dtype, data: st.DataObject) -> None:
    reading = data.draw(readings(LOSSES.make(loss).together))
    values: dict[str, Any] = {"loss": loss}
    if loss != "dpo":
        values |= data.draw(
            st.sampled_from(
                [
                    {"normalisation": "token"},
                    {"normalisation": "rollout"},
                    {"normalisation": "constant", "tokens_per_rollout": 11},
                ]
            )
        )

    expected = stepped(dtype, lora, reading.trained, {**values, **ONE_BY_ONE})
    found = stepped(dtype, lora, reading.shuffled, {**values, **reading.way})

    assert agree(found, expected, EXACT[dtype])


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", ["own", "shared"])
@settings(max_examples=2, derandomize=True)
@given(data=st.data())
def test_no_reading_changes_a_critics_gradient(kind: str, lora: bool, dtype: torch.dtype, data: st.DataObject) -> None:
    reading = data.draw(readings(1))

    def learned(trained: list[WeightedTransition], way: dict[str, Any]) -> Tensor:
        config = UpdateConfig(**STEADY, **way, lora=LORA if lora else None)
        made = ActorCritic(policy(dtype, lora=lora), config, CRITICS.make({"name": kind, "learning_rate": 0.0}))
        made.critic.head.weight.data.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(3))
        calls = [replace(item, transition=replace(item.transition, value=0.3)) for item in trained]
        made.learn(calls, [ValueTarget(item.transition, item.advantage) for item in calls])
        return gradient([made.model, made.critic.head, made.critic.backbone])

    expected, found = learned(reading.trained, ONE_BY_ONE), learned(reading.shuffled, reading.way)

    assert agree(found, expected, EXACT[dtype])
