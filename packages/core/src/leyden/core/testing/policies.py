"""Tiny random policies and synthetic rollouts, for tests and benchmarks of training."""

import random
from dataclasses import dataclass
from typing import Any

import torch.random

from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.testing.factories import transition


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Size of a random Qwen3 model."""

    vocab: int = 64
    hidden: int = 32
    intermediate: int = 64
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 8
    context: int = 512
    tied: bool = True


def tiny_policy(seed: int = 0, shape: TinyShape | None = None) -> PolicyModel:
    """Return a Qwen3 policy with random weights, spread enough that its log-probabilities differ."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = shape or TinyShape()
    make_config: Any = Qwen3Config
    make_model: Any = Qwen3ForCausalLM
    config = make_config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.context,
        tie_word_embeddings=size.tied,
        initializer_range=0.2,
    )
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(seed)
        return PolicyModel(make_model(config), f"tiny-qwen3-{seed}")


def with_adapters(model: PolicyModel, options: LoraOptions) -> PolicyModel:
    """Add LoRA adapters to `model` and return it; their B matrices, initially 0, get random values."""
    model.adapt(options)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.trained_weights().items():
        if ".lora_B." in name:
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutShape:
    """Token counts of a synthetic rollout with two calls, whose second prompt extends the first call."""

    system: int = 12
    """Tokens with which every rollout's prompt begins."""
    question: int = 4
    calls: tuple[int, ...] = (5, 3)
    """Tokens generated in each call."""
    observation: int = 6
    """Tokens between two calls."""


def synthetic_rollouts(
    count: int,
    vocab: int,
    seed: int = 0,
    shape: RolloutShape | None = None,
    single_call_share: float = 0.0,
    group_size: int = 1,
) -> list[WeightedTransition]:
    """Return the transitions of `count` rollouts of random tokens, with random log-probabilities and advantages.

    `single_call_share` of the rollouts end after their first call. Each `group_size` consecutive rollouts have the same
    prompt.
    """
    size = shape or RolloutShape()
    random_ = random.Random(seed)

    def draw(length: int) -> list[int]:
        return [random_.randrange(vocab) for _ in range(length)]

    system = draw(size.system)
    trained: list[WeightedTransition] = []
    prompt: list[int] = []
    for number in range(count):
        if number % group_size == 0:
            prompt = system + draw(size.question)
        context = prompt
        advantage = random_.gauss(0.0, 1.0)
        calls = size.calls[:1] if random_.random() < single_call_share else size.calls
        for turn, length in enumerate(calls):
            response = draw(length)
            trained.append(_weighted(f"ro-{number}", turn, context, response, advantage, random_))
            context = context + response + draw(size.observation)
    return trained


def _weighted(
    rollout_id: str, turn: int, prompt: list[int], response: list[int], advantage: float, random_: random.Random
) -> WeightedTransition:
    call = transition(
        prompt,
        response,
        [random_.uniform(-5.0, -3.0) for _ in response],
        rollout_id=rollout_id,
        attempt_id="at-1",
        span_id=f"{rollout_id}-{turn}",
        call_id=f"{rollout_id}-{turn}",
        temperature=random_.choice((0.7, 1.0)),
    )
    return WeightedTransition(transition=call, advantage=advantage)
