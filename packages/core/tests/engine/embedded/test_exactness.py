import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EnginePrecision, EngineRecord, GenerateRequest, TokenChunk
from leyden.core.engine.embedded.cache import PrefixCache, SlotCache
from leyden.core.engine.embedded.check import STEPS, Expected, check_forward
from leyden.core.engine.embedded.decoder import DecodedSequence, Decoder
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.fused_forward import FusedForward
from leyden.core.engine.embedded.generic_forward import Forward, GenericForward
from leyden.core.engine.embedded.weights import cache_shape
from leyden.core.errors import EngineError
from leyden.core.testing.tiny_models import tiny_model

VOCABULARY = 61
LEAN = ["qwen3", "qwen3-sliding", "qwen2", "llama", "llama-scaled", "mistral"]


def plain_logprobs(model: nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Raw log-probabilities after each id, by the model's own forward over that one sequence."""
    with torch.no_grad():
        return cast(Any, model)(torch.tensor([list(ids)]), use_cache=False).logits[0].log_softmax(-1)


def naive_greedy(model: nn.Module, prompt: list[int], tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(plain_logprobs(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def plain_scores(model: nn.Module, prompt: list[int], answer: list[int]) -> list[float]:
    logprobs = plain_logprobs(model, prompt + answer)
    return [float(logprobs[len(prompt) - 1 + n, token]) for n, token in enumerate(answer)]


Served: TypeAlias = tuple[EmbeddedEngine, list[EngineRecord]]


@asynccontextmanager
async def serving(model: nn.Module, config: EmbeddedConfig) -> AsyncGenerator[Served]:
    records: list[EngineRecord] = []
    engine = EmbeddedEngine(model, name="tiny", config=config, on_finish=records.append)
    await engine.start()
    try:
        yield engine, records
    finally:
        await engine.close()


def ragged_prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of 1 to 70 tokens, half of them sharing a beginning with an earlier one."""
    generator = random.Random(seed)
    prompts: list[list[int]] = []
    for n in range(count):
        start = prompts[generator.randrange(n)][:48] if n and n % 2 else []
        prompts.append(start + [generator.randrange(VOCABULARY) for _ in range(generator.randint(1, 70 - len(start)))])
    return prompts


async def answer(
    engine: EmbeddedEngine, name: str, prompt: list[int], sampling: Sampling, wait: float = 0
) -> list[int]:
    await asyncio.sleep(wait)
    request = GenerateRequest(request_id=name, prompt_ids=prompt, sampling=sampling)
    return [token async for chunk in engine.generate(request) for token in chunk.ids]


async def chunks_of(engine: EmbeddedEngine, call: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(call)]


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize("family", LEAN)
async def test_ragged_calls_that_join_midway_get_the_naive_loops_tokens(family: str, lean: bool) -> None:
    await check_against_the_naive_loop(tiny_model(family), EmbeddedConfig(max_batch=5, lean=lean))


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt2"])
async def test_other_families_go_through_their_own_forward(family: str) -> None:
    await check_against_the_naive_loop(tiny_model(family), EmbeddedConfig(max_batch=5))


async def check_against_the_naive_loop(model: nn.Module, config: EmbeddedConfig) -> None:
    prompts = ragged_prompts(9, seed=3)
    sampling = [Sampling(temperature=0, max_tokens=4 + 3 * n % 11) for n in range(len(prompts))]
    async with serving(model, config) as (engine, records):
        answers = await asyncio.gather(
            *(answer(engine, f"{n}", p, sampling[n], 0.002 * n) for n, p in enumerate(prompts))
        )
    assert answers == [naive_greedy(model, p, s.max_tokens or 0) for p, s in zip(prompts, sampling, strict=True)]
    for record in records:
        expected = plain_scores(model, record.prompt_ids, record.response_ids)
        assert record.logprobs == pytest.approx(expected, abs=1e-4)


async def test_sampled_tokens_carry_the_log_probabilities_of_a_plain_forward() -> None:
    model = tiny_model("qwen3")
    async with serving(model, EmbeddedConfig(max_batch=6)) as (engine, records):
        prompts = ragged_prompts(12, seed=4)
        sampling = Sampling(temperature=0.7, max_tokens=9)
        await asyncio.gather(*(answer(engine, f"{n}", p, sampling, 0.001 * n) for n, p in enumerate(prompts)))
    for record in records:
        whole = plain_logprobs(model, record.prompt_ids + record.response_ids)
        cooled = (whole / 0.7).log_softmax(-1)
        positions = [(len(record.prompt_ids) - 1 + n, token) for n, token in enumerate(record.response_ids)]
        assert record.logprobs == pytest.approx([float(whole[p]) for p in positions], abs=1e-4)
        assert record.sampling_logprobs == pytest.approx([float(cooled[p]) for p in positions], abs=1e-4)


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
async def test_the_likeliest_tokens_are_those_of_a_plain_forward(lean: bool) -> None:
    model = tiny_model("qwen2", vocab_size=17)
    counts, sampling = [0, 1, 5, 20], [Sampling(max_tokens=7), Sampling(temperature=0.5, top_p=0.6, max_tokens=7)]
    calls = [
        GenerateRequest(
            request_id=f"{n}", prompt_ids=[1 + n, 2, 3], sampling=sampling[n % 2], top_logprobs=counts[n % 4]
        )
        for n in range(8)
    ]
    async with serving(model, EmbeddedConfig(max_batch=3, lean=lean, chunk_seconds=0)) as (engine, _):
        answers = await asyncio.gather(*(chunks_of(engine, call) for call in calls))
    for call, chunks in zip(calls, answers, strict=True):
        ids = [token for chunk in chunks for token in chunk.ids]
        if not call.top_logprobs:
            assert [chunk.top for chunk in chunks] == [None] * len(chunks)
            continue
        tops = [top for chunk in chunks for top in chunk.top or []]
        plain = plain_logprobs(model, call.prompt_ids + ids)[2:-1]
        for logprobs_V, top in zip(plain, tops, strict=True):
            best, order = (cast(Any, t).tolist() for t in logprobs_V.sort(descending=True))
            assert [token for token, _ in top] == order[: call.top_logprobs]
            assert [value for _, value in top] == pytest.approx(best[: call.top_logprobs], abs=1e-4)


async def test_of_equally_likely_tokens_the_lower_ids_are_told() -> None:
    model = tiny_model("qwen2", vocab_size=40)
    with torch.no_grad():
        cast(Any, model).lm_head.weight[7:] = cast(Any, model).lm_head.weight[7]
    async with serving(model, EmbeddedConfig()) as (engine, _):
        call = GenerateRequest(request_id="a", prompt_ids=[1, 2], sampling=Sampling(max_tokens=9), top_logprobs=20)
        tops = [top for chunk in await chunks_of(engine, call) for top in chunk.top or []]
    assert len(tops) == 9
    for top in tops:
        logprobs = dict(top)
        assert [token for token, _ in top] == sorted(logprobs, key=lambda token: (-logprobs[token], token))


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
async def test_bfloat16_is_served_to_its_own_precision(lean: bool) -> None:
    model = tiny_model("qwen3").to(torch.bfloat16)
    async with serving(model, EmbeddedConfig(lean=lean)) as (engine, records):
        await answer(engine, "a", [1, 2, 3], Sampling(temperature=0, max_tokens=5))
    expected = plain_logprobs(model, records[0].prompt_ids + records[0].response_ids).float()
    positions = [(2 + n, token) for n, token in enumerate(records[0].response_ids)]
    assert records[0].logprobs == pytest.approx([float(expected[p]) for p in positions], abs=0.2)


def make_decoder(model: nn.Module, *, prefix_tokens: int) -> Decoder:
    shape = cache_shape(model)
    return Decoder(FusedForward(model), SlotCache(shape), PrefixCache(shape, prefix_tokens))


def decode(decoder: Decoder, prompts: list[list[int]], seeds: list[int]) -> list[DecodedSequence]:
    """Sample five tokens after each prompt: half of the prompts join first, the others one step later."""
    sequences = [DecodedSequence(p, Sampling(), limit=5, seed=s) for p, s in zip(prompts, seeds, strict=True)]
    half = len(sequences) // 2
    for joining in (sequences[:half], sequences[half:]):
        if joining:
            decoder.prefill(joining)
        if decoder.rows:
            decoder.step()
    while decoder.rows:
        decoder.step()
    return sequences


PROMPT_PARTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 64), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, derandomize=True)  # a draw next to a boundary may fall either way
@given(parts=PROMPT_PARTS, capacity=st.sampled_from([16, 48, 128, 4096]))
def test_known_prefixes_change_no_answer(parts: list[tuple[int, int, list[int]]], capacity: int) -> None:
    bases = [[random.Random(n).randrange(VOCABULARY) for _ in range(64)] for n in range(3)]
    prompts = [bases[base][:length] + tail for base, length, tail in parts]
    model = MODEL
    fresh = [decode(make_decoder(model, prefix_tokens=0), [p], [n])[0] for n, p in enumerate(prompts)]
    cached = make_decoder(model, prefix_tokens=capacity)
    for _ in range(2):  # the second time everything that fits is known
        for got, want in zip(decode(cached, prompts, list(range(len(prompts)))), fresh, strict=True):
            assert got.ids == want.ids
            assert [value for _, value, _ in got.sampled] == pytest.approx([v for _, v, _ in want.sampled], abs=1e-5)
    for prompt in prompts:
        expected = plain_logprobs(model, prompt)[:-1]
        targets = [float(expected[n, token]) for n, token in enumerate(prompt[1:])]
        assert cached.score(prompt) == pytest.approx(targets, abs=1e-4)


MODEL = tiny_model("qwen3")


async def test_a_forward_that_is_wrong_is_replaced_by_the_models_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = FusedForward.__call__

    def wrong(self: FusedForward, *args: Any, **options: Any) -> torch.Tensor:
        return original(self, *args, **options) * 1.01

    monkeypatch.setattr(FusedForward, "__call__", wrong)
    model = tiny_model("qwen2")
    async with serving(model, EmbeddedConfig()) as (engine, records):
        await answer(engine, "a", [1, 2, 3], Sampling(temperature=0, max_tokens=5))
    assert "Qwen2ForCausalLM is served by its own, slower forward pass: in the fast one, the served" in caplog.text
    expected = plain_scores(model, records[0].prompt_ids, records[0].response_ids)
    assert records[0].logprobs == pytest.approx(expected, abs=1e-4)


def _off_by_one_window(forward: Forward) -> Any:
    def wrong(self: Any, ids_BQ: Any, step: Any, *, every: bool = False) -> torch.Tensor:
        mask = step.mask

        def narrower(window: int | None = None) -> torch.Tensor:
            return mask(None if window is None else window - 1)

        step.mask = narrower
        return cast(Any, forward)(self, ids_BQ, step, every=every)

    return wrong


async def test_an_engine_that_would_serve_something_else_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (FusedForward, GenericForward):
        monkeypatch.setattr(kind, "__call__", _off_by_one_window(cast(Any, kind.__call__)))
    engine = EmbeddedEngine(tiny_model("mistral"), name="tiny")
    with pytest.raises(EngineError, match="MistralForCausalLM cannot be served exactly"):
        await engine.start()
    with pytest.raises(EngineError, match="closed"):
        await engine.score([1, 2])


def _scaled(forward: Forward, factor: float) -> Forward:
    def scaled(ids_BQ: torch.Tensor, step: Any, *, every: bool = False) -> torch.Tensor:
        return forward(ids_BQ, step, every=every) * factor

    return cast(Forward, scaled)


@torch.no_grad()
def check_scaled(error: float, own_difference: float) -> None:
    """Check a forward pass whose log-probabilities of one row differ by up to `error` from the model's own."""
    model = tiny_model("llama")
    expected = replace(Expected.of(model), own_difference=own_difference)
    shape = cache_shape(model)
    logits = cast(Any, model)(torch.tensor([expected.rows[-1]]), use_cache=False).logits[0]
    difference = (logits - logits.log_softmax(-1).exp().mul(logits).sum(-1, keepdim=True)).abs().max().item()
    forward = _scaled(FusedForward(model), 1 + error / difference)
    check_forward(expected, forward, SlotCache(shape), PrefixCache(shape, 1024), "float32")


def test_rounding_errors_as_large_as_the_models_own_are_no_reason_to_refuse_it() -> None:
    check_scaled(error=0.003, own_difference=0.002)


@pytest.mark.parametrize(("error", "own_difference"), [(0.003, 0.0), (0.003, 0.0002), (0.03, 0.0), (0.03, 1.0)])
def test_larger_errors_than_the_models_own_and_errors_too_large_for_rounding_are_refused(
    error: float, own_difference: float
) -> None:
    with pytest.raises(EngineError, match=r"would differ from the model's own by up to 0\.0"):
        check_scaled(error, own_difference)


@torch.no_grad()
def check_with_one_error(error: float, precision: EnginePrecision = "float32") -> None:
    """Check a forward pass that differs by `error` at the second token of the first test sequence, and nowhere else."""
    model = tiny_model("llama")
    expected = Expected.of(model)
    shape, plain, length = cache_shape(model), FusedForward(model), len(expected.rows[0]) - STEPS
    prompt = torch.tensor(expected.rows[0][:length])

    def forward(ids_BQ: torch.Tensor, step: Any, *, every: bool = False) -> torch.Tensor:
        logits = plain(ids_BQ, step, every=every)
        if every:
            for n, ids_Q in enumerate(ids_BQ):
                if torch.equal(ids_Q[:length], prompt):
                    logits[n, 1, 0] += error
        return logits

    check_forward(expected, cast(Forward, forward), SlotCache(shape), PrefixCache(shape, 1024), precision)


def test_an_error_of_rounding_that_a_model_amplifies_at_one_position_is_no_reason_to_refuse_it() -> None:
    check_with_one_error(0.005)
    with pytest.raises(EngineError, match=r"would differ from the model's own by up to 0\.0"):
        check_with_one_error(0.05)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rounded_weights_may_differ_much_at_a_position_where_a_model_amplifies_rounding_errors(precision: Any) -> None:
    check_with_one_error(20.0, precision)
    for error in (float("nan"), float("inf")):
        with pytest.raises(EngineError, match=r"would differ from the model's own by up to inf, at 2 of \d+ positions"):
            check_with_one_error(error, precision)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rounded_weights_that_differ_at_many_positions_are_refused(precision: Any) -> None:
    model = tiny_model("llama")
    expected, shape = Expected.of(model), cache_shape(model)
    forward = _scaled(FusedForward(model), 30.0)
    with pytest.raises(EngineError, match=r"at \d\d+ of \d+ positions by more than [24]"):
        check_forward(expected, forward, SlotCache(shape), PrefixCache(shape, 1024), precision)


def test_the_own_difference_of_a_small_model_is_one_of_rounding() -> None:
    with torch.no_grad():
        assert 0 <= Expected.of(tiny_model("llama")).own_difference < 1e-4


async def test_a_state_space_model_is_refused_with_the_reason() -> None:
    with pytest.raises(EngineError, match="mamba has layers of type mamba"):
        await EmbeddedEngine(tiny_model("mamba"), name="tiny").start()


def test_rotations_that_depend_on_the_batch_are_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    with pytest.raises(EngineError, match="dynamic rotary"):
        EmbeddedEngine(tiny_model("llama", rope_parameters=rope), name="tiny")
