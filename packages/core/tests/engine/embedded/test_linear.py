"""Layers with packed weights, against products in float64, and an engine that has them."""

import asyncio
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.engine.embedded import linear
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.linear import Int8Linear, Linear, PackedLinear, linear_class, packs_weights
from leyden.core.testing.tiny_models import tiny_model

has_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture
def always_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack the weights of tiny models, on any processor."""
    monkeypatch.setattr(linear, "CACHED_BYTES", 0)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


@has_onednn
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (8, 1), (33, 1), (2, 100), (3, 0)])
@pytest.mark.parametrize("inputs", [1, 24, 100, 576])
@pytest.mark.parametrize("outputs", [1, 43, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_any_size(shape: tuple[int, int], inputs: int, outputs: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(inputs + outputs)
    weight = nn.Parameter(torch.randn(outputs, inputs, generator=generator))
    bias = torch.randn(outputs, generator=generator) if has_bias else None
    x = torch.randn(*shape, inputs, generator=generator)
    layer = PackedLinear(weight, bias)
    expected = exact(x, weight, bias)
    assert torch.allclose(layer(x).double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.allclose(layer(x[:, -1:]).double(), expected[:, -1:], rtol=1e-5, atol=1e-4)


@has_onednn
def test_a_change_of_the_weight_counts_after_a_refresh() -> None:
    weight, x = torch.randn(8, 16), torch.randn(2, 16)
    layer = PackedLinear(weight)
    weight.mul_(2)
    layer.refresh()
    assert torch.allclose(layer(x).double(), exact(x, weight, None), atol=1e-5)
    assert torch.equal(layer.rows(torch.tensor([3])), weight[3:4])


async def records_of(model: nn.Module, newer: nn.Module, prompts: Sequence[list[int]]) -> list[EngineRecord]:
    """Answer `prompts` before and after an update to the weights of `newer`."""
    records: list[EngineRecord] = []
    engine = EmbeddedEngine(model, name="tiny", config=EmbeddedConfig(), on_finish=records.append)
    await engine.start()

    async def one(prompt: list[int]) -> None:
        request = GenerateRequest(request_id="x", prompt_ids=prompt, sampling=Sampling(max_tokens=12))
        async for _ in engine.generate(request):
            continue

    await asyncio.gather(*map(one, prompts))
    await engine.update_weights(dict(newer.named_parameters()), 1)
    await asyncio.gather(*map(one, prompts))
    await engine.close()
    return records


@has_onednn
@pytest.mark.usefixtures("always_packed")
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "mistral"])
async def test_an_engine_with_packed_weights_records_what_the_model_gives(family: str) -> None:
    model, newer = tiny_model(family, seed=0), tiny_model(family, seed=1)
    assert linear_class("float32", model) is PackedLinear
    records = await records_of(model, newer, [[1 + n, 14, 15, 9, 26, 5] for n in range(9)])
    assert [record.versions for record in records] == [[(0, 12)]] * 9 + [[(1, 12)]] * 9
    for record in records:
        ids = torch.tensor([record.prompt_ids + record.response_ids])
        with torch.no_grad():
            logits = (newer if record.versions[0][0] else model)(ids).logits[0, len(record.prompt_ids) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, ids[0, len(record.prompt_ids) :, None])[:, 0]
        assert record.logprobs == pytest.approx(own.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("capability", "parameters", "device", "packs"),
    [
        ("AVX2", 9 << 20, "cpu", True),
        ("AVX2", 8 << 20, "cpu", False),
        ("AVX2", 9 << 20, "cuda", False),
        ("AVX512", 9 << 20, "cpu", False),
        ("DEFAULT", 9 << 20, "cpu", False),
    ],
)
@has_onednn
def test_weights_are_packed_where_that_was_found_faster(
    monkeypatch: pytest.MonkeyPatch, capability: str, parameters: int, device: str, packs: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert packs_weights(parameters, device) is packs


@pytest.mark.usefixtures("always_packed")
def test_only_a_model_and_an_engine_in_float32_have_packed_weights() -> None:
    model = tiny_model("qwen3")
    assert linear_class("bfloat16", model) is Linear
    assert linear_class("int8", model) is Int8Linear
    assert linear_class("float32", model.bfloat16()) is Linear
