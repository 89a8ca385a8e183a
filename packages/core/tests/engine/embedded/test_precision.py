"""An engine that keeps its weights in bfloat16, against the same rounding by transformers' own modules."""

import copy
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.testing.tiny_models import tiny_model

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 43]
ROUNDED = EmbeddedConfig(precision="bfloat16")
FUSED = ["qwen3", "qwen2", "llama", "mistral"]


class RoundedLinear(nn.Module):
    """A linear layer whose product has its inputs, weights and results in bfloat16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x.bfloat16(), self.linear.weight.bfloat16()).float()
        bias = cast("Tensor | None", self.linear.bias)
        return y if bias is None else y + bias


def rounded(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with rounded linear layers and embeddings."""
    own = copy.deepcopy(model)
    for module in list(own.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, RoundedLinear(child))
    embedding = cast(Any, own).model.embed_tokens
    embedding.weight = nn.Parameter(embedding.weight.detach().bfloat16().float())
    return own


def logprobs_of(model: nn.Module, prompt: list[int], response: list[int]) -> Tensor:
    with torch.no_grad():
        logits = cast(Any, model)(torch.tensor([prompt + response]), use_cache=False).logits[0].float()
    chosen = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return chosen.gather(1, torch.tensor(response)[:, None])[:, 0]


@asynccontextmanager
async def serving(
    model: nn.Module, config: EmbeddedConfig
) -> AsyncGenerator[tuple[EmbeddedEngine, list[EngineRecord]]]:
    records: list[EngineRecord] = []
    engine = EmbeddedEngine(model, name="tiny", config=config, on_finish=records.append)
    await engine.start()
    try:
        yield engine, records
    finally:
        await engine.close()


async def answer(engine: EmbeddedEngine, **sampling: Any) -> list[int]:
    request = GenerateRequest(request_id="1", prompt_ids=PROMPT, sampling=Sampling(max_tokens=24, **sampling))
    return [token async for chunk in engine.generate(request) for token in chunk.ids]


@pytest.mark.parametrize("family", FUSED)
async def test_recorded_log_probabilities_are_those_of_the_rounded_model(family: str) -> None:
    model = tiny_model(family)
    async with serving(model, ROUNDED) as (engine, records):
        response = await answer(engine)
    (record,) = records
    served = torch.tensor(record.logprobs)
    own = (served - logprobs_of(rounded(model), PROMPT, response)).abs()
    exact = (served - logprobs_of(model, PROMPT, response)).abs()
    assert own.mean() < exact.mean() / 3
    assert own.mean() < 0.01
    assert record.sampling_logprobs == record.logprobs


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma2"])
async def test_a_rounded_model_stays_close_to_the_exact_one(family: str) -> None:
    model = tiny_model(family)
    async with serving(model, ROUNDED) as (engine, records):
        assert engine.precision == "bfloat16"
        response = await answer(engine)
    apart = (torch.tensor(records[0].logprobs) - logprobs_of(model, PROMPT, response)).abs()
    assert 1e-5 < apart.mean() < 0.1


async def test_an_update_is_rounded_and_the_callers_weights_are_not() -> None:
    model, newer = tiny_model("qwen3", seed=0), tiny_model("qwen3", seed=1)
    async with serving(model, ROUNDED) as (engine, _), serving(newer, ROUNDED) as (expected, _):
        before = await engine.score(PROMPT)
        await engine.update_weights(dict(newer.named_parameters()), 1)
        assert await engine.score(PROMPT) == pytest.approx(await expected.score(PROMPT), abs=1e-6)
        assert await engine.score(PROMPT) != pytest.approx(before, abs=0.1)
    assert all(parameter.dtype == torch.float32 for parameter in (*model.parameters(), *newer.parameters()))


async def test_an_exact_engine_is_the_default() -> None:
    model = tiny_model("qwen3")
    async with serving(model, EmbeddedConfig()) as (engine, records):
        assert engine.precision == "float32"
        response = await answer(engine)
    assert records[0].logprobs == pytest.approx(list(map(float, logprobs_of(model, PROMPT, response))), abs=1e-5)
