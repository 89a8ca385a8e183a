"""An engine that keeps its weights in bfloat16 or int8, against the same rounding by transformers' own modules."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.linear import FEW_ROWS, Int8Linear
from leyden.core.errors import EngineError
from leyden.core.testing.tiny_models import tiny_model

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 43]
BFLOAT16, INT8 = EmbeddedConfig(precision="bfloat16"), EmbeddedConfig(precision="int8")
FUSED = ["qwen3", "qwen2", "llama", "mistral"]


Rounding = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns a rounded weight (O, I) as values that bfloat16 can hold, and the factor of each row (O)."""


def to_bfloat16(weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight.detach().bfloat16().float(), torch.ones(len(weight))


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to 255 equally distant values around 0."""
    factor = weight.detach().abs().amax(1).clamp(min=1e-30) / 127
    return (weight.detach() / factor[:, None]).round(), factor


ROUNDING = [pytest.param(BFLOAT16, to_bfloat16, id="bfloat16"), pytest.param(INT8, to_int8, id="int8")]


class RoundedLinear(nn.Module):
    """A linear layer with rounded weights, whose inputs and results are rounded to bfloat16."""

    def __init__(self, linear: nn.Linear, how: Rounding) -> None:
        super().__init__()
        self.linear = linear
        self.values, self.factor = how(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x.bfloat16(), self.values.bfloat16()).float() * self.factor
        bias = cast("Tensor | None", self.linear.bias)
        return y if bias is None else y + bias


def rounded(model: nn.Module, how: Rounding) -> nn.Module:
    """Return a copy of `model` with rounded linear layers and embeddings."""
    own = copy.deepcopy(model)
    for module in list(own.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, RoundedLinear(child, how))
    embedding = cast(Any, own).model.embed_tokens
    values, factor = how(embedding.weight)
    embedding.weight = nn.Parameter(values * factor[:, None])
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
@pytest.mark.parametrize(("config", "how"), ROUNDING)
async def test_recorded_log_probabilities_are_those_of_the_rounded_model(
    family: str, config: EmbeddedConfig, how: Rounding
) -> None:
    model = tiny_model(family)
    async with serving(model, config) as (engine, records):
        response = await answer(engine)
    (record,) = records
    served = torch.tensor(record.logprobs)
    own = (served - logprobs_of(rounded(model, how), PROMPT, response)).abs()
    exact = (served - logprobs_of(model, PROMPT, response)).abs()
    assert own.mean() < exact.mean() / 3
    assert own.mean() < 0.01
    assert record.sampling_logprobs == record.logprobs


@pytest.mark.parametrize(
    ("family", "config"),
    [("qwen3", BFLOAT16), ("gpt2", BFLOAT16), ("gemma2", BFLOAT16), ("qwen3", INT8), ("llama", INT8)],
)
async def test_a_rounded_model_stays_close_to_the_exact_one(family: str, config: EmbeddedConfig) -> None:
    model = tiny_model(family)
    async with serving(model, config) as (engine, records):
        assert engine.precision == config.precision
        response = await answer(engine)
    apart = (torch.tensor(records[0].logprobs) - logprobs_of(model, PROMPT, response)).abs()
    assert 1e-5 < apart.mean() < 0.1


@pytest.mark.parametrize("config", [BFLOAT16, INT8])
async def test_an_update_is_rounded_and_the_callers_weights_are_not(config: EmbeddedConfig) -> None:
    model, newer = tiny_model("qwen3", seed=0), tiny_model("qwen3", seed=1)
    async with serving(model, config) as (engine, _), serving(newer, config) as (expected, _):
        before = await engine.score(PROMPT)
        await engine.update_weights(dict(newer.named_parameters()), 1)
        assert await engine.score(PROMPT) == pytest.approx(await expected.score(PROMPT), abs=1e-6)
        assert await engine.score(PROMPT) != pytest.approx(before, abs=0.1)
    assert all(parameter.dtype == torch.float32 for parameter in (*model.parameters(), *newer.parameters()))


async def test_many_rows_get_the_log_probabilities_of_one() -> None:
    """Few rows are multiplied with int8 weights and many with their wide copy: both are the same weights."""
    model, prompts = tiny_model("qwen3"), [[1 + n, *PROMPT] for n in range(2 * FEW_ROWS)]
    async with serving(model, INT8) as (engine, records):

        async def one(prompt: list[int]) -> None:
            request = GenerateRequest(request_id=str(prompt[0]), prompt_ids=prompt, sampling=Sampling(max_tokens=16))
            async for _ in engine.generate(request):
                continue

        await asyncio.gather(*map(one, prompts))
    assert len(records) == len(prompts)
    own = rounded(model, to_int8)
    for record in records:
        served = torch.tensor(record.logprobs)
        assert (served - logprobs_of(own, record.prompt_ids, record.response_ids)).abs().mean() < 0.01


async def test_int8_is_refused_where_it_cannot_be_served() -> None:
    engine = EmbeddedEngine(tiny_model("gpt2"), name="tiny", config=INT8)
    with pytest.raises(EngineError, match=r"int8 is for float32 models of the families llama.*take bfloat16 for GPT2"):
        await engine.start()
    await engine.close()


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 33])
@pytest.mark.parametrize("inputs", [1, 8, 16, 24, 40, 48, 100, 576])
@pytest.mark.parametrize("outputs", [1, 3, 4, 43, 64])
def test_int8_products_of_any_size(rows: int, inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    weight, bias = torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator).bfloat16().float()
    values, factor = to_int8(weight)
    expected = (x.double() @ values.double().T) * factor
    apart = (Int8Linear(weight, bias)(x) - bias - expected).abs()
    assert (apart <= expected.abs() * 2**-7 + 1e-5).all()


def test_weights_that_are_no_numbers_stay_so() -> None:
    weight = torch.zeros(3, 16)
    weight[1, 2] = torch.nan
    y = Int8Linear(weight)(torch.ones(1, 16))
    assert y[0, 0] == 0
    assert torch.equal(y.isnan(), torch.tensor([[False, True, False]]))


async def test_an_exact_engine_is_the_default() -> None:
    model = tiny_model("qwen3")
    async with serving(model, EmbeddedConfig()) as (engine, records):
        assert engine.precision == "float32"
        response = await answer(engine)
    assert records[0].logprobs == pytest.approx(list(map(float, logprobs_of(model, PROMPT, response))), abs=1e-5)
