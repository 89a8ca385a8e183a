import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.sampling import likeliest, raw_log_probs, sample, truncate
from leyden.core.testing.tiny_models import tiny_model

LOGITS = [2.0, 1.0, 0.0, -1.0, 0.5, -3.0, 1.5]


def brute_force(logits: list[float], temperature: float, top_p: float) -> list[float]:
    """The distribution drawn from, by sorting and adding up in plain Python."""
    scaled = torch.tensor(logits, dtype=torch.float64) / temperature
    probs = [float(p) for p in scaled.softmax(0)]
    kept: list[int] = []
    for token in sorted(range(len(probs)), key=lambda t: -probs[t]):
        kept.append(token)
        if sum(probs[t] for t in kept) >= top_p:
            break
    total = sum(probs[t] for t in kept)
    return [probs[t] / total if t in kept else 0.0 for t in range(len(probs))]


def chi_square(counts: Counter[int], expected: list[float], samples: int) -> float:
    return sum((counts[t] - samples * p) ** 2 / (samples * p) for t, p in enumerate(expected) if p)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.7), (0.7, 0.9)])
def test_draws_follow_the_distribution(temperature: float, top_p: float) -> None:
    samples = 20_000
    uniform = random.Random(0)
    sampling = Sampling(temperature=temperature, top_p=top_p)
    raw = raw_log_probs(torch.tensor([LOGITS]))
    sampled = sample(raw.expand(samples, -1), [sampling] * samples, [uniform.random() for _ in range(samples)])
    expected = brute_force(LOGITS, temperature, top_p)
    counts = Counter(sampled.ids)
    assert set(counts) <= {t for t, p in enumerate(expected) if p}
    assert chi_square(counts, expected, samples) < 22.5  # 6 degrees of freedom, p = 0.001
    assert chi_square(counts, brute_force(LOGITS, temperature * 1.3, top_p), samples) > 22.5
    for token, logprob, sampling_logprob in list(zip(*sampled[:3], strict=True))[:50]:
        assert logprob == pytest.approx(float(raw[0, token]), abs=1e-5)
        assert sampling_logprob == pytest.approx(float(torch.tensor(expected[token]).log()), abs=1e-5)


def test_rows_of_one_batch_keep_their_own_sampling() -> None:
    settings = [Sampling(temperature=0), Sampling(), Sampling(temperature=0.5), Sampling(top_p=0.5), Sampling(top_p=0)]
    raw = raw_log_probs(torch.tensor([LOGITS] * 5))
    uniforms = [0.99, 0.3, 0.999, 0.999, 0.999]
    batched = sample(raw, settings, uniforms)
    single = [sample(raw[:1], [s], [u]) for s, u in zip(settings, uniforms, strict=True)]
    assert batched.ids == [a.ids[0] for a in single]
    assert batched.logprobs == pytest.approx([a.logprobs[0] for a in single])
    assert batched.sampling_logprobs == pytest.approx([a.sampling_logprobs[0] for a in single])
    assert batched.ids[0] == batched.ids[4] == 0
    assert batched.sampling_logprobs[0] == batched.logprobs[0]


@pytest.mark.parametrize("seed", range(20))
def test_truncation_equals_brute_force(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(5, 40, generator=generator)
    shares = [0.05, 0.3, 0.8, 0.99, 1.0]
    got = truncate(logits.log_softmax(-1), [Sampling(top_p=share) for share in shares]).exp()
    for row, share in enumerate(shares):
        expected = brute_force([float(x) for x in logits[row]], 1.0, share)
        assert [float(p) for p in got[row]] == pytest.approx(expected, abs=1e-5)


def test_the_ends_of_the_cdf_are_tokens_that_can_be_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]] * 2)
    assert sample(raw_log_probs(logits), [Sampling()] * 2, [0.0, 1 - 2**-53]).ids == [1, 2]


@given(
    rows=st.lists(st.lists(st.integers(-3, 0), min_size=7, max_size=7), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_the_likeliest_are_told_in_order_and_of_equals_the_lower_ids(rows: list[list[int]], counts: list[int]) -> None:
    found = likeliest(torch.tensor(rows, dtype=torch.float32), counts[: len(rows)])
    for row, count, top in zip(rows, counts, found, strict=False):
        assert top == sorted(enumerate(map(float, row)), key=lambda pair: (-pair[1], pair[0]))[:count]


async def test_an_engine_draws_from_its_models_distribution() -> None:
    model = tiny_model(vocab_size=8)
    engine = EmbeddedEngine(model, name="tiny", config=EmbeddedConfig(max_batch=64, seed=1))
    await engine.start()
    counts: Counter[int] = Counter()
    streams = [
        engine.generate(GenerateRequest(request_id=f"{n}", prompt_ids=[1, 2, 3], sampling=Sampling(max_tokens=1)))
        for n in range(3000)
    ]

    async def first(n: int) -> None:
        counts.update([token async for chunk in streams[n] for token in chunk.ids])

    await asyncio.gather(*(first(n) for n in range(len(streams))))
    await engine.close()
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 3]])).logits[0, -1].softmax(-1).tolist()
    assert chi_square(counts, expected, 3000) < 24.3  # 7 degrees of freedom, p = 0.001


def kept_by_hand(logprobs: Sequence[float], sampling: Sampling) -> set[int]:
    """The tokens that min-p, top-k and top-p leave, one after another; ties go to the lower id."""
    order = sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))
    chances = [math.exp(value) for value in logprobs]
    order = [token for token in order if chances[token] >= sampling.min_p * chances[order[0]] * (1 - 1e-9)]
    order = order[: sampling.top_k or len(order)]
    if sampling.top_p == 1:
        return set(order)
    whole = sum(chances[token] for token in order)
    kept, held = set[int](), 0.0
    for token in order:
        if kept and held >= sampling.top_p - 1e-9:
            break
        kept.add(token)
        held += chances[token] / whole
    return kept


TRUNCATIONS = st.builds(
    Sampling,
    temperature=st.just(1.0),
    min_p=st.sampled_from([0.0, 0.011, 0.29, 0.47, 1.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([1.0, 0.947, 0.613, 0.307, 0.011, 0.0]),
)


@given(
    weights=st.lists(st.integers(1, 6) | st.just(0), min_size=2, max_size=8).filter(any),
    samplings=st.lists(TRUNCATIONS, min_size=1, max_size=4),
    uniform=st.sampled_from([0.0, 0.3, 0.999, math.nextafter(1.0, 0.0)]),
)
def test_only_tokens_that_truncation_leaves_are_sampled(
    weights: list[int], samplings: list[Sampling], uniform: float
) -> None:
    """Small whole weights, so that many are tied; a weight of 0 is a token that a grammar does not allow."""
    raw_V = torch.tensor([weights], dtype=torch.float32).log().log_softmax(-1)
    raw_BV = raw_V.repeat(len(samplings), 1)

    found_BV = truncate(raw_BV, samplings)
    sampled = sample(raw_BV, samplings, [uniform] * len(samplings))

    logprobs: list[float] = cast("Any", raw_V[0].double()).tolist()
    for row, sampling in enumerate(samplings):
        kept = kept_by_hand(logprobs, sampling) & {token for token, weight in enumerate(weights) if weight}
        whole = math.log(sum(weights[token] for token in kept))
        expected = [math.log(weight) - whole if n in kept else -math.inf for n, weight in enumerate(weights)]
        assert cast("Any", found_BV[row]).tolist() == pytest.approx(expected, abs=1e-5)
        assert sampled.ids[row] in kept
        assert sampled.sampling_logprobs[row] == pytest.approx(expected[sampled.ids[row]], abs=1e-5)


def test_tokens_that_a_grammar_removed_are_not_among_the_likeliest() -> None:
    raw = torch.tensor([[-0.5, -torch.inf, -1.0, -torch.inf]])
    assert likeliest(raw, [3]) == [[(0, -0.5), (2, -1.0)]]
