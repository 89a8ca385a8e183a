"""Weights that change under answers in flight: every token is held against a fresh forward by the version it names."""

import asyncio
import random
import threading
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest, TokenChunk
from leyden.core.engine.embedded import shared_prefixes
from leyden.core.engine.embedded.decoder import Decoder
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.record import version_ranges
from leyden.core.testing.tiny_models import tiny_model

SHARED = [random.Random(0).randrange(61) for _ in range(40)]
"""More than two blocks of the prefix cache."""


@pytest.fixture(autouse=True)
def read_shared_prefixes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models' caches are too small to be worth it."""
    monkeypatch.setattr(shared_prefixes, "CLASS_BYTES", 0)
    monkeypatch.setattr(shared_prefixes, "WORTH_BYTES", 0)


def calls() -> list[GenerateRequest]:
    """Twins, prompts that begin alike and strangers; every kind of sampling; answers short and long."""
    kinds = [(0.0, 1.0), (1.0, 1.0), (0.6, 1.0), (1.0, 0.8), (1.0, 1.0)]
    return [
        GenerateRequest(
            request_id=f"{n}",
            prompt_ids=[*SHARED, *range(n)] if n != 1 else [*SHARED, *range(4)],
            sampling=Sampling(temperature=kinds[n % 5][0], top_p=kinds[n % 5][1], seed=n, max_tokens=44 - 3 * n),
            top_logprobs=3 if n % 2 else 0,
        )
        for n in range(8)
    ]


class Updates:
    """Makes the decode thread wait before given steps until the update that is due has been handed in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, due: Mapping[int, nn.Module]) -> None:
        self._due = due
        self._reached = {step: asyncio.Event() for step in due}
        self._go = {step: threading.Event() for step in due}
        loop, original, count = asyncio.get_running_loop(), Decoder.step, iter(range(1_000_000))

        def step(decoder: Decoder) -> None:
            if (n := next(count)) in due:
                loop.call_soon_threadsafe(self._reached[n].set)
                self._go[n].wait(10)
            original(decoder)

        monkeypatch.setattr(Decoder, "step", step)

    async def make(self, engine: EmbeddedEngine) -> None:
        for version, (step, model) in enumerate(self._due.items(), 1):
            await self._reached[step].wait()
            update = asyncio.create_task(engine.update_weights(dict(model.named_parameters()), version))
            await asyncio.sleep(0)  # the task hands it in with its first step
            self._go[step].set()
            await update


async def chunks_of(engine: EmbeddedEngine, call: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(call)]


def raw_by_position(models: list[nn.Module], record: EngineRecord) -> list[Tensor]:
    """The raw distribution at each place of the answer, by a forward of that place's version over all before it."""
    ids = torch.tensor([record.prompt_ids + record.response_ids])
    with torch.no_grad():
        plain = {v: cast(Any, models[v])(ids, use_cache=False).logits[0].log_softmax(-1) for v, _ in record.versions}
    versions = [version for version, tokens in record.versions for _ in range(tokens)]
    return [plain[version][len(record.prompt_ids) - 1 + n] for n, version in enumerate(versions)]


def sampling_log_probs(raw_V: Tensor, sampling: Sampling) -> list[float]:
    """The probabilities of the distribution that `sampling` draws from."""
    if sampling.temperature == 0:
        return [float(n == int(raw_V.argmax())) for n in range(len(raw_V))]
    probs = [float(p) for p in (raw_V / sampling.temperature).softmax(-1)]
    kept, total = list[int](), 0.0
    for token in sorted(range(len(probs)), key=lambda t: -probs[t]):
        if total < sampling.top_p:
            kept.append(token)
            total += probs[token]
    return [p / total if token in kept else 0.0 for token, p in enumerate(probs)]


def check_position(call: GenerateRequest, raw_V: Tensor, token: int, uniform: float) -> float:
    """Assert that `uniform` picks `token`; return the log-probability it was drawn with."""
    probs = sampling_log_probs(raw_V, call.sampling)
    ends = [0.0, *accumulate(probs)]
    assert ends[token] - 1e-4 <= uniform <= ends[token + 1] + 1e-4
    return float(raw_V[token]) if call.sampling.temperature == 0 else float(torch.tensor(probs[token]).log())


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize(("prefix_tokens", "chunk_seconds"), [(0, 0.0), (4096, 10.0)])
async def test_each_token_is_of_the_version_it_names(
    monkeypatch: pytest.MonkeyPatch, lean: bool, prefix_tokens: int, chunk_seconds: float
) -> None:
    models = [tiny_model(seed=seed) for seed in range(3)]
    records: dict[str, EngineRecord] = {}
    config = EmbeddedConfig(max_batch=5, chunk_seconds=chunk_seconds, lean=lean, prefix_cache_tokens=prefix_tokens)
    engine = EmbeddedEngine(
        models[0], name="tiny", config=config, on_finish=lambda record: records.update({record.request_id: record})
    )
    await engine.start()
    updates = Updates(monkeypatch, {6: models[1], 25: models[2]})
    answered = asyncio.gather(*(chunks_of(engine, call) for call in calls()))
    await updates.make(engine)
    answers = await answered
    await engine.close()
    assert records["0"].versions[0][0] == 0 and len(records["0"].versions) == 3
    assert {v for record in records.values() for v, _ in record.versions} == {0, 1, 2}
    for call, chunks in zip(calls(), answers, strict=True):
        record, uniform = records[call.request_id], random.Random(call.sampling.seed).random
        assert record.versions == version_ranges((chunk.version, len(chunk.ids)) for chunk in chunks)
        assert record.version == record.versions[0][0]
        raw = raw_by_position(models, record)
        assert record.logprobs == pytest.approx(
            [float(raw_V[token]) for raw_V, token in zip(raw, record.response_ids, strict=True)], abs=1e-4
        )
        expected = [
            check_position(call, r, token, uniform()) for r, token in zip(raw, record.response_ids, strict=True)
        ]
        assert record.sampling_logprobs == pytest.approx(expected, abs=1e-4)
        tops = [top for chunk in chunks for top in chunk.top or []]
        assert len(tops) == (len(raw) if call.top_logprobs else 0)
        for raw_V, top in zip(raw, tops, strict=False):
            best = [float(value) for value in raw_V.topk(3).values]
            assert [value for _, value in top] == pytest.approx(best, abs=1e-4)
            assert [float(raw_V[token]) for token, _ in top] == pytest.approx(best, abs=1e-4)
