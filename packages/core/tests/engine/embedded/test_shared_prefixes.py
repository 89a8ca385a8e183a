import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.embedded import fused_forward, shared_prefixes
from leyden.core.engine.embedded.cache import PrefixCache, SlotCache
from leyden.core.engine.embedded.decoder import DecodedSequence, Decoder
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.engine.embedded.fused_forward import FusedForward
from leyden.core.engine.embedded.shared_prefixes import SharedPrefixes, attend, find_shared_prefixes, packed
from leyden.core.engine.embedded.weights import cache_shape
from leyden.core.testing.tiny_models import tiny_model

VOCABULARY = 61


@pytest.fixture
def at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share whatever can be shared: the caches of tiny models are too small to be worth it."""
    monkeypatch.setattr(shared_prefixes, "CLASS_BYTES", 0)
    monkeypatch.setattr(shared_prefixes, "WORTH_BYTES", 0)


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[SharedPrefixes]:
    """What each layer of each step shared."""
    calls: list[SharedPrefixes] = []

    def counted(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, common: SharedPrefixes) -> Tensor:
        calls.append(common)
        return attend(q, keys, values, mask, common)

    monkeypatch.setattr(fused_forward, "attend", counted)
    return calls


def classes_of(common: SharedPrefixes) -> list[set[int]]:
    order = range(common.sizes[0]) if common.order_B is None else cast(Any, common.order_B).tolist()
    rows = iter(order)
    return [{next(rows) for _ in range(size)} for size in common.sizes]


def found(prompts: Sequence[Sequence[int]], column_bytes: int = 1 << 20) -> tuple[int, list[set[int]]] | None:
    common = find_shared_prefixes([packed(prompt) for prompt in prompts], column_bytes)
    if common is None:
        return None
    assert [leader in rows for leader, rows in zip(common.leaders, classes_of(common), strict=True)]
    return common.length, sorted(classes_of(common), key=min)


def test_rows_that_begin_alike_are_one_class() -> None:
    assert found([[1, 2, 3, 4], [1, 2, 3, 9], [1, 2, 3]]) == (3, [{0, 1, 2}])


def test_two_kinds_of_prompt_are_two_classes_of_one_length() -> None:
    one, other = list(range(20)), list(range(50, 80))
    assert found([[*one, 1], [*other, 1], [*one, 2], [*other, 2]]) == (20, [{0, 2}, {1, 3}])


def test_what_is_cut_off_is_weighed_against_the_classes_it_takes() -> None:
    trunk, ends = list(range(100)), [[n] * 30 for n in range(16)]
    prompts = [trunk + end for end in ends for _ in range(8)]
    assert found(prompts, column_bytes=768) == (100, [set(range(128))])
    assert found(prompts, column_bytes=1 << 16) == (130, [set(range(8 * n, 8 * n + 8)) for n in range(16)])


def test_little_that_is_shared_is_not_worth_it() -> None:
    prompts = [[1, 2, 3, n] for n in range(4)]
    assert found(prompts, column_bytes=1024) is None
    assert found([[n] * 200 for n in range(64)]) is None
    assert found([[1] * 4000]) is None


def test_the_order_of_bytes_is_not_mistaken_for_tokens() -> None:
    assert found([[256, 7], [256, 7 + 256], [256, 7 + 65536]]) == (1, [{0, 1, 2}])


@settings(max_examples=40, derandomize=True)
@given(
    classes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    length=st.integers(1, 30),
    own=st.integers(1, 20),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    window=st.sampled_from([None, 3, 25]),
    seed=st.integers(0, 99),
)
def test_it_is_attention_over_everything(
    classes: list[int], length: int, own: int, heads: tuple[int, int], window: int | None, seed: int
) -> None:
    generator, rows = torch.Generator().manual_seed(seed), sum(classes)
    numbers = iter(cast("list[int]", cast(Any, torch.randperm(rows, generator=generator)).tolist()))
    members = [[next(numbers) for _ in range(size)] for size in classes]
    q, groups, width = torch.randn(rows, heads[0], 1, 5, generator=generator), heads[1], length + own
    keys, values = torch.randn(2, rows, groups, width, 5, generator=generator)
    for own_rows in members:
        for tensor in (keys, values):
            tensor[own_rows, :, :length] = tensor[own_rows[0], :, :length].clone()
    last_positions = torch.randint(length, width, (rows, 1), generator=generator)
    positions = cast("list[list[int]]", cast(Any, last_positions).tolist())
    cache = SlotCache(cache_shape(tiny_model("qwen3")))
    mask = cache.step(0, [*positions[:-1], [width - 1]]).mask(window)
    got = attend(q, keys, values, mask, SharedPrefixes.of(members, length))
    expected = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
    assert torch.allclose(got, expected, atol=2e-6)


def decode(model: nn.Module, prompts: list[list[int]], limits: list[int]) -> list[DecodedSequence]:
    """Sample after each prompt: the prompts join one after the other, a step apart, and leave when they are done."""
    shape = cache_shape(model)
    decoder = Decoder(FusedForward(model), SlotCache(shape), PrefixCache(shape, 256))
    rows = [DecodedSequence(p, Sampling(), limit=limits[n], seed=n) for n, p in enumerate(prompts)]
    for row in rows:
        decoder.prefill([row])
        decoder.step()
    while decoder.rows:
        decoder.step()
    return rows


def plain_scores(model: nn.Module, row: DecodedSequence) -> list[float]:
    with torch.no_grad():
        logprobs = cast(Any, model)(torch.tensor([row.ids]), use_cache=False).logits[0].log_softmax(-1)
    first = len(row.ids) - len(row.sampled) - 1
    return [float(logprobs[first + n, token]) for n, (token, _, _) in enumerate(row.sampled)]


@pytest.mark.usefixtures("at_any_price")
@pytest.mark.parametrize("family", ["qwen3", "qwen3-sliding", "qwen2", "llama", "llama-scaled", "mistral"])
def test_rows_that_come_and_go_get_the_log_probabilities_of_a_plain_forward(
    family: str, attended: list[SharedPrefixes]
) -> None:
    model, generator = tiny_model(family), random.Random(0)
    starts = [[*range(10), *(generator.randrange(VOCABULARY) for _ in range(40))] for _ in range(2)]
    prompts = [starts[n % 2] + [generator.randrange(VOCABULARY) for _ in range(n % 3)] for n in range(9)]
    rows = decode(model, prompts, limits=[12 - n for n in range(9)])
    assert {len(common.sizes) for common in attended} >= {1, 2}
    for row in rows:
        assert [value for _, value, _ in row.sampled] == pytest.approx(plain_scores(model, row), abs=1e-4)


def test_tiny_caches_are_read_as_ever(attended: list[SharedPrefixes]) -> None:
    decode(tiny_model("qwen3"), [[1] * 40] * 4, limits=[5] * 4)
    assert not attended


@pytest.mark.usefixtures("at_any_price")
def test_coarse_precisions_are_read_as_ever(attended: list[SharedPrefixes]) -> None:
    decode(tiny_model("qwen3").to(torch.bfloat16), [[1] * 40] * 4, limits=[5] * 4)
    assert not attended


async def test_a_forward_that_shares_what_is_not_shared_does_not_serve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def longer(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, common: SharedPrefixes) -> Tensor:
        classes = SharedPrefixes(common.length + 1, common.leaders, common.sizes, common.order_B, common.index_B)
        return attend(q, keys, values, mask, classes)

    monkeypatch.setattr(fused_forward, "attend", longer)
    engine = EmbeddedEngine(tiny_model("qwen3"), name="tiny")
    await engine.start()
    await engine.close()
    assert "Qwen3ForCausalLM is served by its own, slower forward pass: in the fast one, the served" in caplog.text
