"""The supervised stage: a randomly initialised model, AdamW, and one forward of the prefix that all dialogues share."""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from tiny_policy.text import END_ID, IGNORED, PAD_ID, Example, shared_prefix


@dataclass(frozen=True)
class Shape:
    """Size of the model."""

    hidden: int = 96
    layers: int = 3
    heads: int = 4
    feed_forward: int = 192
    initial_spread: float = 0.08


@dataclass(frozen=True)
class Stage:
    """Some optimizer steps under one warm-up and one cosine decay."""

    steps: int
    batch: int
    learning_rate: float


RECIPE = (Stage(900, 16, 3e-3), Stage(1000, 16, 2e-3), Stage(900, 24, 1.5e-3))
WARM_UP, FINAL_SHARE = 50, 0.05


def build_model(vocabulary: int, shape: Shape, seed: int) -> Qwen3ForCausalLM:
    """A fresh model in float32 whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=shape.initial_spread,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    return Qwen3ForCausalLM(config).float()


def train(
    model: Qwen3ForCausalLM,
    examples: Sequence[Example],
    recipe: Sequence[Stage],
    seed: int,
    report: Callable[[int, float, float], None],
) -> None:
    """Minimise cross-entropy on the expert's tokens; `report(step, loss, seconds)` is called after every step."""
    rng, started, step = random.Random(seed), time.perf_counter(), 0
    prefix = shared_prefix(examples)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    model.train()
    for stage in recipe:
        for index in range(stage.steps):
            for group in optimizer.param_groups:
                group["lr"] = stage.learning_rate * _schedule(index, stage.steps)
            loss = _loss(model, rng.choices(examples, k=stage.batch), prefix)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            report(step, loss.item(), time.perf_counter() - started)
    model.eval()


def _schedule(index: int, steps: int) -> float:
    cosine = 0.5 + 0.5 * math.cos(math.pi * index / steps)
    return min(1.0, (index + 1) / WARM_UP) * max(FINAL_SHARE, cosine)


def _loss(model: Qwen3ForCausalLM, batch: Sequence[Example], prefix: int) -> torch.Tensor:
    """Mean cross-entropy per labelled token; the prefix is computed once and its gradient flows."""
    ids, labels = _padded(batch, prefix)
    cache = DynamicCache(config=model.config)
    if prefix:
        model.model(torch.tensor([batch[0].ids[:prefix]]), past_key_values=cache)
        cache.batch_repeat_interleave(len(batch))
    hidden = model.model(ids, past_key_values=cache).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    chosen = targets != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), targets[chosen])


def _padded(batch: Sequence[Example], prefix: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels after the prefix, both (examples, longest), padded on the right, where nothing looks at them."""
    longest = max(len(example.ids) for example in batch)
    ids = [[*example.ids, *[0] * (longest - len(example.ids))][prefix:] for example in batch]
    labels = [[*example.labels, *[IGNORED] * (longest - len(example.labels))][prefix:] for example in batch]
    return torch.tensor(ids), torch.tensor(labels)
