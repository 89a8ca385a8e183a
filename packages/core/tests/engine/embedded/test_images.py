"""Prompts with images in the embedded engine, held against the model's own forward pass over pixels."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leyden.core.data.encoding.images import PromptImage, digest_of
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, TokenChunk
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.engine.embedded.weights import load_model
from leyden.core.errors import EngineError, PolicyError
from leyden.core.images.processor import ImageProcessor
from leyden.core.testing.tiny_models import tiny_model
from leyden.core.testing.tiny_vision import IMAGE_TOKENS, picture, save_tiny_vision_policy

RED, BLUE, GREY = (220, 20, 20), (20, 20, 220), (90, 90, 90)
BEFORE, AFTER = [5, 6, 7, 8] * 5, [9, 10, 11]


@dataclass(frozen=True)
class Policy:
    folder: Path
    model: Any
    processor: ImageProcessor


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("vision")
    save_tiny_vision_policy(folder)
    return Policy(folder, load_model(folder), ImageProcessor(str(folder)))


@asynccontextmanager
async def serving(policy: Policy, **config: Any) -> AsyncGenerator[EmbeddedEngine]:
    engine = EmbeddedEngine(policy.model, name="tiny", config=EmbeddedConfig(**config), tokenizer=str(policy.folder))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(policy: Policy, colours: Sequence[tuple[int, int, int]], seed: int = 1, **more: Any) -> GenerateRequest:
    """A prompt with pictures of these colours, and text around each."""
    ids, images = list(BEFORE), list[PromptImage]()
    for colour in colours:
        data = picture(colour)
        images.append(PromptImage(digest=digest_of(data), data=data, start=len(ids), tokens=IMAGE_TOKENS))
        ids += [policy.processor.token] * IMAGE_TOKENS + AFTER
    sampling = Sampling(max_tokens=12, seed=seed, **more)
    return GenerateRequest(request_id="r", prompt_ids=ids, images=tuple(images), sampling=sampling)


async def generated(engine: EmbeddedEngine, given: GenerateRequest) -> TokenChunk:
    chunks = [chunk async for chunk in engine.generate(given)]
    return TokenChunk(
        ids=[token for chunk in chunks for token in chunk.ids],
        logprobs=[value for chunk in chunks for value in chunk.logprobs],
        sampling_logprobs=[value for chunk in chunks for value in chunk.sampling_logprobs],
        version=chunks[-1].version,
    )


def plain_scores(policy: Policy, model: Any, given: GenerateRequest, answer: Sequence[int]) -> Tensor:
    """Log-probabilities of an answer, by the model's own forward pass over the ids and the pixels."""
    pixels = [policy.processor.pixels(image.digest, image.data) for image in given.images]
    ids = torch.tensor([[*given.prompt_ids, *answer]])
    more = {"pixel_values": torch.as_tensor(np.stack(pixels))} if pixels else {}
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, use_cache=False, **more).logits
    logprobs = logits[0, len(given.prompt_ids) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(answer)[:, None])[:, 0]


@pytest.mark.parametrize("cached_tokens", [0, 4096])
async def test_log_probabilities_are_those_of_the_models_own_forward_pass(policy: Policy, cached_tokens: int) -> None:
    async with serving(policy, prefix_cache_tokens=cached_tokens) as engine:
        assert engine.takes_images
        for colours in ([RED], [BLUE], [RED, BLUE], [BLUE, RED], [RED, RED], [GREY, RED], [], [RED]):
            given = request(policy, colours)
            found = await generated(engine, given)
            expected = plain_scores(policy, policy.model, given, found.ids)
            assert torch.allclose(torch.tensor(found.logprobs), expected, atol=1e-5), colours


async def test_equal_placeholders_of_different_images_never_share_a_cached_prefix(policy: Policy) -> None:
    """The same prompts give the same answers with and without a cache; the log-probabilities differ by picture."""
    calls = [request(policy, [colour, GREY]) for colour in (RED, BLUE, RED, BLUE)]
    async with serving(policy, prefix_cache_tokens=0) as engine:
        apart = [await generated(engine, call) for call in calls]
    async with serving(policy, prefix_cache_tokens=4096) as engine:
        cached = [await generated(engine, call) for call in calls]
    assert [one.ids for one in cached] == [one.ids for one in apart]
    assert apart[0].logprobs != apart[1].logprobs
    for one, other in zip(cached, apart, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_calls_with_and_without_images_are_decoded_together(policy: Policy) -> None:
    calls = [request(policy, colours, seed=n) for n, colours in enumerate([[RED], [BLUE], [], [RED, BLUE], [RED]])]
    async with serving(policy) as engine:
        found = await asyncio.gather(*(generated(engine, call) for call in calls))
    for call, one in zip(calls, found, strict=True):
        expected = plain_scores(policy, policy.model, call, one.ids)
        assert torch.allclose(torch.tensor(one.logprobs), expected, atol=1e-5)


async def test_new_weights_of_the_vision_part_are_served(policy: Policy) -> None:
    """A cached image of the old weights is not used again."""
    other = load_model(policy.folder)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "vision_tower" in name or "projector" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    given = request(policy, [RED])
    async with serving(policy) as engine:
        before = await generated(engine, given)
        await engine.update_weights(dict(other.named_parameters(remove_duplicate=True)), 1)
        after = await generated(engine, given)
    assert after.version == 1
    assert after.logprobs != before.logprobs
    assert torch.allclose(torch.tensor(after.logprobs), plain_scores(policy, other, given, after.ids), atol=1e-5)


async def test_images_that_cannot_be_read_abort_only_their_call(policy: Policy) -> None:
    good = request(policy, [RED])
    image = good.images[0]
    broken = PromptImage(digest="0" * 64, data=b"no picture", start=image.start, tokens=image.tokens)
    outside = PromptImage(digest=image.digest, data=image.data, start=image.start + 10, tokens=image.tokens)
    async with serving(policy) as engine:
        for bad in (broken, outside):
            wrong = GenerateRequest(request_id="w", prompt_ids=good.prompt_ids, images=(bad,), sampling=good.sampling)
            with pytest.raises(EngineError, match="image"):
                await generated(engine, wrong)
        assert (await generated(engine, good)).ids


async def test_a_model_without_vision_takes_no_images(policy: Policy) -> None:
    engine = EmbeddedEngine(tiny_model("qwen3", vocab_size=300), name="text")
    await engine.start()
    try:
        assert not engine.takes_images
        with pytest.raises(EngineError, match="text takes no images"):
            await generated(engine, request(policy, [RED]))
    finally:
        await engine.close()


def test_a_policy_without_its_image_processor_is_refused_in_one_line(policy: Policy, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((policy.folder / name).read_bytes())
    with pytest.raises(PolicyError, match="its image processor cannot be loaded") as caught:
        ImageProcessor.find(str(tmp_path))
    assert "\n" not in str(caught.value)
