"""The embedded engine on a GPU, against plain forward passes of the same model on the CPU."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import pytest
import torch
from torch import nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.errors import EngineError
from leyden.core.testing.tiny_models import tiny_model

VOCABULARY = 61
FAMILIES = ["qwen3", "qwen3-sliding", "qwen2", "llama", "mistral", "gemma2", "gemma3", "gpt2"]

Served: TypeAlias = tuple[EmbeddedEngine, list[EngineRecord]]


def plain_logprobs(model: nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities after each id, by the model's own forward pass on the CPU."""
    with torch.no_grad():
        return cast(Any, model)(torch.tensor([list(ids)]), use_cache=False).logits[0].float().log_softmax(-1)


def greedy(model: nn.Module, prompt: list[int], tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(plain_logprobs(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def check_logprobs(model: nn.Module, records: Sequence[EngineRecord], within: float = 1e-4) -> None:
    """Compare the log-probabilities that the engine recorded with those of plain forward passes."""
    for record in records:
        expected = plain_logprobs(model, record.prompt_ids + record.response_ids)
        positions = [(len(record.prompt_ids) - 1 + n, token) for n, token in enumerate(record.response_ids)]
        assert record.logprobs == pytest.approx([float(expected[p]) for p in positions], abs=within)


@asynccontextmanager
async def serving(model: nn.Module, **options: Any) -> AsyncGenerator[Served]:
    """Serve a copy of `model` on the GPU."""
    records: list[EngineRecord] = []
    config = EmbeddedConfig(max_batch=6, **options)
    engine = EmbeddedEngine(model.cuda(), name="tiny", config=config, on_finish=records.append)
    model.cpu()  # the engine has a copy of its own
    await engine.start()
    try:
        yield engine, records
    finally:
        await engine.close()


async def answer(engine: EmbeddedEngine, number: int, prompt: list[int], sampling: Sampling) -> list[int]:
    await asyncio.sleep(0.002 * number)
    request = GenerateRequest(request_id=f"{number}", prompt_ids=prompt, sampling=sampling, top_logprobs=3)
    return [token async for chunk in engine.generate(request) for token in chunk.ids]


def prompts(count: int) -> list[list[int]]:
    """Prompts of different lengths, every second of which begins as one before."""
    draw = random.Random(3)
    found: list[list[int]] = []
    for n in range(count):
        start = found[draw.randrange(n)][:48] if n % 2 else []
        found.append(start + [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 70 - len(start)))])
    return found


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_greedy_answers_are_those_of_the_cpu(family: str, lean: bool) -> None:
    model = tiny_model(family)
    asked = prompts(9)
    limits = [4 + 3 * n % 11 for n in range(len(asked))]
    async with serving(model, lean=lean) as (engine, records):
        answers = await asyncio.gather(
            *(
                answer(engine, n, prompt, Sampling(temperature=0, max_tokens=limits[n]))
                for n, prompt in enumerate(asked)
            )
        )
    assert answers == [greedy(model, prompt, limit) for prompt, limit in zip(asked, limits, strict=True)]
    assert len(records) == len(asked)
    check_logprobs(model, records)


async def test_drawn_tokens_have_the_log_probabilities_of_the_cpu() -> None:
    model = tiny_model("qwen3")
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=9)
    async with serving(model) as (engine, records):
        await asyncio.gather(*(answer(engine, n, prompt, sampling) for n, prompt in enumerate(prompts(12))))
    assert len(records) == 12
    check_logprobs(model, records)


async def test_a_seed_draws_the_same_tokens_beside_other_calls() -> None:
    model = tiny_model("qwen3")
    sampling = Sampling(max_tokens=20, seed=7)
    async with serving(model) as (engine, _):
        alone = await answer(engine, 0, [1, 2, 3], sampling)
        together = await asyncio.gather(
            answer(engine, 0, [1, 2, 3], sampling),
            *(answer(engine, n, prompt, Sampling(max_tokens=20)) for n, prompt in enumerate(prompts(5))),
        )
    assert together[0] == alone


async def test_new_weights_arrive_from_either_device() -> None:
    first, second = tiny_model("qwen3", seed=0), tiny_model("qwen3", seed=1)
    sampling = Sampling(temperature=0, max_tokens=8)
    async with serving(first) as (engine, _):
        for version, model in enumerate((second.cuda(), first), start=1):
            await engine.update_weights({name: p.detach() for name, p in model.named_parameters()}, version)
            assert engine.version == version
            assert await answer(engine, 0, [5, 6, 7], sampling) == greedy(model.cpu(), [5, 6, 7], 8)


async def test_bfloat16_is_served_to_its_own_precision() -> None:
    model = tiny_model("qwen3").to(torch.bfloat16)
    async with serving(model) as (engine, records):
        await answer(engine, 0, [1, 2, 3], Sampling(temperature=0, max_tokens=5))
    assert len(records) == 1
    check_logprobs(model, records, within=0.2)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
async def test_weights_rounded_to_bfloat16_give_log_probabilities_near_those_of_the_cpu(family: str) -> None:
    model = tiny_model(family)
    async with serving(model, precision="bfloat16") as (engine, records):
        assert engine.precision == "bfloat16"
        await asyncio.gather(
            *(answer(engine, n, prompt, Sampling(max_tokens=9)) for n, prompt in enumerate(prompts(6)))
        )
    assert len(records) == 6
    check_logprobs(model, records, within=0.2)


async def test_int8_is_refused_in_one_line() -> None:
    with pytest.raises(EngineError, match="on a CPU; take bfloat16"):
        async with serving(tiny_model("qwen3"), precision="int8"):
            pass
