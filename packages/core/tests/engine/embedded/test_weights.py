import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import EngineRecord, GenerateRequest, TokenChunk
from leyden.core.engine.embedded.cache import PrefixCache
from leyden.core.engine.embedded.decoder import DecodedSequence, Decoder
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.weights import Weights, load_model
from leyden.core.errors import EngineError, PolicyError, UsageError
from leyden.core.testing.tiny_models import tiny_model

PROMPT = [7, 3, 9, 1] * 12


def request(name: str = "a", tokens: int = 60, prompt: list[int] = PROMPT) -> GenerateRequest:
    return GenerateRequest(
        request_id=name, prompt_ids=prompt, sampling=Sampling(temperature=0, max_tokens=tokens), stop_ids=()
    )


def parameters(model: nn.Module) -> dict[str, object]:
    return dict(model.named_parameters())


def plain_scores(model: nn.Module, ids: list[int]) -> list[float]:
    with torch.no_grad():
        logprobs = cast(Any, model)(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    return [float(logprobs[n, token]) for n, token in enumerate(ids[1:])]


async def served_error(engine: EmbeddedEngine, model: nn.Module) -> float:
    """The check that follows every update: the largest difference to the trainer's own log-probabilities."""
    pairs = zip(await engine.score(PROMPT), plain_scores(model, PROMPT), strict=True)
    return max(abs(served - own) for served, own in pairs)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "gemma2"])
async def test_an_update_is_served_exactly_from_the_next_step_on(family: str) -> None:
    old, new = tiny_model(family, seed=0), tiny_model(family, seed=1)
    engine = EmbeddedEngine(old, name="tiny", config=EmbeddedConfig(chunk_seconds=0))
    await engine.start()
    chunks: list[TokenChunk] = []
    async for chunk in engine.generate(request()):
        chunks.append(chunk)
        if len(chunks) == 2:
            await engine.update_weights(parameters(new), 1)
            assert await served_error(engine, new) < 1e-4
    await engine.close()
    ids = PROMPT + [token for chunk in chunks for token in chunk.ids]
    scores = {0: plain_scores(old, ids), 1: plain_scores(new, ids)}
    assert {chunk.version for chunk in chunks} == {0, 1}
    position = len(PROMPT) - 1
    for chunk in chunks:
        expected = scores[chunk.version][position : position + len(chunk.ids)]
        assert chunk.logprobs == pytest.approx(expected, abs=1e-4)
        position += len(chunk.ids)


async def test_the_engine_keeps_its_own_copy() -> None:
    model, twin = tiny_model(), tiny_model()
    engine = EmbeddedEngine(model, name="tiny")
    await engine.start()
    update = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    await engine.update_weights(update, 1)
    with torch.no_grad():
        for tensor in [*model.parameters(), *update.values()]:
            tensor.zero_()
    assert await served_error(engine, twin) < 1e-4
    await engine.close()


class ForgetsToFlush(PrefixCache):
    def flush(self) -> None:
        pass


async def test_a_stale_prefix_cache_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.core.engine.embedded.engine.PrefixCache", ForgetsToFlush)
    new = tiny_model(seed=1)
    engine = EmbeddedEngine(tiny_model(seed=0), name="tiny")
    await engine.start()
    await engine.score(PROMPT)
    await engine.update_weights(parameters(new), 1)
    assert await served_error(engine, new) > 0.1
    await engine.close()


async def test_a_stale_head_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_but_the_head(self: Weights, chosen: Mapping[str, torch.Tensor]) -> None:
        original(self, {name: tensor for name, tensor in chosen.items() if name != "lm_head.weight"})

    original = Weights.replace
    monkeypatch.setattr(Weights, "replace", all_but_the_head)
    new = tiny_model("qwen2", seed=1)
    engine = EmbeddedEngine(tiny_model("qwen2", seed=0), name="tiny")
    await engine.start()
    await engine.update_weights(parameters(new), 1)
    assert await served_error(engine, new) > 0.1
    await engine.close()


async def test_a_prefix_of_the_old_weights_is_not_used_for_a_new_call() -> None:
    new = tiny_model(seed=1)
    engine = EmbeddedEngine(tiny_model(seed=0), name="tiny")
    await engine.start()
    _ = [chunk async for chunk in engine.generate(request("before", 8))]
    await engine.update_weights(parameters(new), 1)
    after = [chunk async for chunk in engine.generate(request("after", 8))]
    await engine.close()
    ids = [token for chunk in after for token in chunk.ids]
    expected = plain_scores(new, PROMPT + ids)[len(PROMPT) - 1 :]
    assert [value for chunk in after for value in chunk.logprobs] == pytest.approx(expected, abs=1e-4)


def without_first(weights: dict[str, object]) -> dict[str, object]:
    return dict(list(weights.items())[1:])


@pytest.mark.parametrize("case", ["missing", "unknown", "shape", "no tensor", "torn tie"])
async def test_weights_that_do_not_fit_change_nothing(case: str) -> None:
    model = tiny_model(seed=0)
    good = parameters(tiny_model(seed=1))
    embedding = cast("torch.Tensor", good["model.embed_tokens.weight"])
    bad, message = {
        "missing": (without_first(good), r"lacks (model\.embed_tokens|lm_head)\.weight"),
        "unknown": ({**good, "extra": embedding}, "no weight extra"),
        "shape": ({**good, "model.norm.weight": torch.ones(3)}, r"model\.norm\.weight has shape \(3,\)"),
        "no tensor": ({**good, "model.norm.weight": [1.0]}, "is a list"),
        "torn tie": ({**good, "lm_head.weight": embedding + 1}, "are tied in the model but differ in the update"),
    }[case]
    engine = EmbeddedEngine(model, name="tiny", version=3)
    await engine.start()
    with pytest.raises(EngineError, match=message):
        await engine.update_weights(bad, 4)
    assert engine.version == 3
    assert await served_error(engine, model) < 1e-4
    await engine.close()


@pytest.mark.parametrize("names", ["parameters", "state dict", "head alone"])
async def test_a_tied_head_goes_by_any_of_its_names(names: str) -> None:
    new = tiny_model(seed=1)
    update: dict[str, object] = {"parameters": parameters(new), "state dict": dict(new.state_dict())}.get(names, {})
    if names == "head alone":
        update = dict(new.state_dict())
        del update["model.embed_tokens.weight"]
    engine = EmbeddedEngine(tiny_model(seed=0), name="tiny")
    await engine.start()
    await engine.update_weights(update, 1)
    assert await served_error(engine, new) < 1e-4
    await engine.close()


async def test_weights_that_are_not_numbers_fail_the_calls_and_can_be_replaced() -> None:
    new = tiny_model(seed=1)
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in new.named_parameters()}
    engine = EmbeddedEngine(tiny_model(seed=0), name="tiny", config=EmbeddedConfig(chunk_seconds=0))
    await engine.start()
    stream = engine.generate(request(tokens=150))
    await anext(stream)
    await engine.update_weights(broken, 1)
    with pytest.raises(EngineError, match="not finite"):
        _ = [chunk async for chunk in stream]
    await engine.update_weights(parameters(new), 2)
    assert await served_error(engine, new) < 1e-4
    await engine.close()


async def test_a_failing_step_fails_the_calls_in_flight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Decoder) -> None:
        raise MemoryError("no room")

    engine = EmbeddedEngine(tiny_model(), name="tiny")
    await engine.start()
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "step", fail)
        with pytest.raises(EngineError, match="a decode step failed: MemoryError"):
            _ = [chunk async for chunk in engine.generate(request())]
    assert engine.in_flight == 0
    assert sum(len(chunk.ids) for chunk in [chunk async for chunk in engine.generate(request())]) == 60
    await engine.close()


async def test_nobody_waits_for_an_engine_that_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Decoder) -> None:
        raise RuntimeError("device-side assert")

    engine = EmbeddedEngine(tiny_model(), name="tiny")
    await engine.start()
    engine.check()
    monkeypatch.setattr(Decoder, "step", fail)
    monkeypatch.setattr(Decoder, "flush", fail)
    with pytest.raises(EngineError, match="a decode step failed"):
        _ = [chunk async for chunk in engine.generate(request())]
    for _ in range(2):
        with pytest.raises(EngineError, match="the engine is broken: RuntimeError"):
            _ = [chunk async for chunk in engine.generate(request())]
    with pytest.raises(EngineError, match="the engine is broken"):
        await engine.update_weights(parameters(tiny_model(seed=1)), 1)
    with pytest.raises(EngineError, match="the engine is broken"):
        engine.check()
    assert (engine.in_flight, engine.version) == (0, 0)
    await engine.close()


async def test_more_calls_than_rows_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    original = Decoder.step

    def counting(self: Decoder) -> None:
        most.append(len(self.rows))
        original(self)

    monkeypatch.setattr(Decoder, "step", counting)
    engine = EmbeddedEngine(tiny_model(), name="tiny", config=EmbeddedConfig(max_batch=3))
    await engine.start()

    async def count(n: int) -> int:
        return sum([len(c.ids) async for c in engine.generate(request(f"{n}", 10, [n, 2, 3]))])

    assert await asyncio.gather(*(count(n) for n in range(8))) == [10] * 8
    await engine.close()
    assert max(most) == 3


async def test_the_rest_of_the_process_is_left_as_it_was() -> None:
    before, interval = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(2)
    try:
        engine = EmbeddedEngine(tiny_model(), name="tiny")
        await engine.start()
        assert torch.get_num_threads() == 2
        assert sys.getswitchinterval() <= 0.0005
        await engine.close()
        assert sys.getswitchinterval() == interval
    finally:
        torch.set_num_threads(before)


async def test_a_log_that_fails_does_not_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: EngineRecord) -> None:
        raise OSError("disk full")

    engine = EmbeddedEngine(tiny_model(), name="tiny", on_finish=fail)
    await engine.start()
    assert sum([len(chunk.ids) async for chunk in engine.generate(request(tokens=3))]) == 3
    await engine.close()
    assert "disk full" in caplog.text


@pytest.mark.parametrize("ids", [[], [1] * 257, [1, 61], [-1, 1]])
async def test_what_cannot_be_scored_is_an_error(ids: list[int]) -> None:
    engine = EmbeddedEngine(tiny_model(), name="tiny")
    await engine.start()
    with pytest.raises(EngineError, match="cannot score"):
        await engine.score(ids)
    await engine.close()


async def test_an_engine_that_was_not_started_says_so() -> None:
    engine = EmbeddedEngine(tiny_model(), name="tiny")
    with pytest.raises(EngineError, match="not started"):
        await engine.score([1, 2])
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.start()


def test_what_was_drawn_is_taken_once() -> None:
    sequence = DecodedSequence([1, 2], Sampling(), limit=1)
    sequence.append(5, -1.0, -1.0)
    assert sequence.finish_reason == "length"
    assert sequence.take() == [(5, -1.0, -1.0)]
    assert sequence.take() == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"max_batch": 0}, "max_batch"), ({"chunk_seconds": -1.0}, "negative"), ({"context_length": 1}, "context_length")],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EmbeddedConfig(**setting)


def test_a_folder_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    model = tiny_model("qwen3", seed=2)
    cast(Any, model).save_pretrained(tmp_path)
    assert plain_scores(load_model(tmp_path), PROMPT) == pytest.approx(plain_scores(model, PROMPT))
    assert next(load_model(tmp_path, dtype="bfloat16").parameters()).dtype == torch.bfloat16


def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "no-such-architecture"}')
    (tmp_path / "weightless").mkdir()
    cast(Any, tiny_model()).config.save_pretrained(tmp_path / "weightless")
    for name, message in [
        ("absent", "does not exist"),
        ("empty", "has no config.json"),
        ("odd", "cannot be loaded"),
        ("weightless", "cannot be loaded"),
    ]:
        with pytest.raises(PolicyError, match=message) as caught:
            load_model(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolicyError, match="dtype 'int8'"):
        load_model(tmp_path, dtype="int8")
