"""Updates from calls with images: the trainer reads the engine's pixels, whatever the packing.

The reference reads one call at a time with the model's own forward pass over pixels, without any of the trainer's code.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional
from torch import Tensor

from leyden.core.data.encoding.images import PromptImage, digest_of
from leyden.core.data.encoding.tokens import log_probs, token_ids
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Transition
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.errors import TrainingError
from leyden.core.images.processor import ImageProcessor
from leyden.core.policy.capability_checks import Capabilities, prove
from leyden.core.policy.critic.critic import Critic
from leyden.core.policy.losses.reinforce import Reinforce
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.probe import recomputed
from leyden.core.policy.replay import replay
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.gradient import accumulate
from leyden.core.policy.update.merge import merged, unmerged
from leyden.core.policy.update.objective import Objective
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import transition
from leyden.core.testing.policies import tiny_policy
from leyden.core.testing.tiny_vision import IMAGE_TOKENS, picture, save_tiny_vision_policy

RED, BLUE, GREY = (220, 20, 20), (20, 20, 220), (90, 90, 90)
INSTRUCTIONS = [5, 6, 7, 8] * 6
PLAIN = Capabilities(plain_head=True, shared_prefix=False)
SHARED = Capabilities(plain_head=True, shared_prefix=True)
BRANCHES = Capabilities(plain_head=True, shared_prefix=True, branches=True)


@dataclass(frozen=True)
class Drawn:
    folder: Path
    processor: ImageProcessor
    trained: list[WeightedTransition]


def prompt(processor: ImageProcessor, *parts: int | tuple[int, int, int]) -> tuple[list[int], tuple[PromptImage, ...]]:
    """Instructions, then tokens and pictures."""
    ids, images = list(INSTRUCTIONS), list[PromptImage]()
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        data = picture(part)
        images.append(PromptImage(digest=digest_of(data), data=data, start=len(ids), tokens=IMAGE_TOKENS))
        ids += [processor.token] * IMAGE_TOKENS
    return ids, tuple(images)


async def answered(folder: Path, processor: ImageProcessor) -> list[Transition]:
    """Calls as the engine answered them: groups with one picture, with two, with none, and a call that goes on."""
    engine = EmbeddedEngine(PolicyModel.load(folder).module, name="tiny", tokenizer=str(folder))
    await engine.start()
    calls: list[Transition] = []

    async def call(name: str, turn: int, ids: list[int], images: tuple[PromptImage, ...], how: Sampling) -> Transition:
        given = GenerateRequest(request_id=f"{name}-{turn}", prompt_ids=ids, images=images, sampling=how)
        chunks = [chunk async for chunk in engine.generate(given)]
        made = transition(
            ids,
            [token for chunk in chunks for token in chunk.ids],
            [value for chunk in chunks for value in chunk.sampling_logprobs],
            rollout_id=name,
            attempt_id="at-1",
            span_id=f"{name}-{turn}",
            call_id=f"{name}-{turn}",
            temperature=how.temperature,
        )
        made = replace(made, images=images, sampling=how if how.adjusts_logits else None)
        calls.append(made)
        return made

    for n, parts in enumerate([(RED, 9), (RED, 9), (BLUE, 9), (9, RED, BLUE), (RED, GREY, 11), (12,), (GREY,)]):
        how = Sampling(max_tokens=6, seed=n, temperature=1.0 if n % 2 else 0.8)
        ids, images = prompt(processor, *parts)
        first = await call(f"ro-{n}", 0, ids, images, how)
        longer, more = prompt(processor, BLUE)
        at = len(first.prompt_ids) + len(first.response_ids)
        later = tuple(replace_start(image, at + image.start - len(INSTRUCTIONS)) for image in more)
        ids = [*first.prompt_ids, *first.response_ids, *longer[len(INSTRUCTIONS) :], 13]
        penalty = 1.5 if n == 0 else 1.0
        await call(f"ro-{n}", 1, ids, images + later, Sampling(max_tokens=4, seed=n, repetition_penalty=penalty))
    await engine.close()
    return calls


def replace_start(image: PromptImage, start: int) -> PromptImage:
    return PromptImage(digest=image.digest, data=image.data, start=start, tokens=image.tokens)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    folder = tmp_path_factory.mktemp("vision")
    save_tiny_vision_policy(folder)
    processor = ImageProcessor(str(folder))
    calls = asyncio.run(answered(folder, processor))
    advantages = np.random.default_rng(0).normal(size=len(calls)).tolist()
    return Drawn(
        folder,
        processor,
        [WeightedTransition(transition=call, advantage=one) for call, one in zip(calls, advantages, strict=True)],
    )


def plain_logprobs(model: PolicyModel, processor: ImageProcessor, call: Transition) -> Tensor:
    """Log-probabilities of a response without penalties, by the model's own forward pass over ids and pixels."""
    pixels = [processor.pixels(image.digest, image.data) for image in call.images]
    more = {"pixel_values": torch.as_tensor(np.stack(pixels)).to(model.dtype)} if pixels else {}
    ids = torch.tensor([[*call.prompt_ids, *call.response_ids]])
    logits: Tensor = model.module(input_ids=ids, use_cache=False, **more).logits
    logits_TV = logits[0, len(call.prompt_ids) - 1 : -1] / call.temperature
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(call.response_ids)[:, None])[:, 0]


def in_float64(model: PolicyModel) -> PolicyModel:
    """The model in float64 throughout; transformers' own RMS norm would round to float32 in between."""

    def norm(module: Any, hidden: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)

    model.module.double()
    for module in model.module.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = functools.partial(norm, module)
    return model


def unadjusted(items: Sequence[WeightedTransition]) -> list[WeightedTransition]:
    return [item for item in items if item.transition.sampling is None]


@pytest.mark.parametrize("exactness", [PLAIN, SHARED, BRANCHES])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("budget", [1, 100_000])
def test_the_first_importance_ratios_are_one(drawn: Drawn, exactness: Capabilities, merge: bool, budget: int) -> None:
    model = PolicyModel.load(drawn.folder)
    found = replay(model, drawn.trained, budget, exactness, merge=merge)
    for item, now_T in zip(drawn.trained, found, strict=True):
        assert np.exp(now_T - np.asarray(item.transition.logprobs)) == pytest.approx(1.0, abs=1e-5)


def test_the_faster_computations_are_proved_for_a_vision_language_model(drawn: Drawn) -> None:
    assert prove(PolicyModel.load(drawn.folder)) == BRANCHES


@pytest.mark.parametrize("exactness", [PLAIN, SHARED, BRANCHES])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("budget", [1, 100_000])
def test_gradients_equal_those_of_the_models_own_forward_pass(
    drawn: Drawn, exactness: Capabilities, merge: bool, budget: int
) -> None:
    """In float64; every parameter that the reference moves is moved equally, those of the vision part included."""
    trained = unadjusted(drawn.trained)
    model = in_float64(PolicyModel.load(drawn.folder))
    weights = step_weights(trained, "token")
    total = torch.zeros((), dtype=torch.float64)
    for item, weight in zip(trained, weights, strict=True):
        total = total - weight * item.advantage * plain_logprobs(model, drawn.processor, item.transition).sum()
    torch.autograd.backward(total)
    expected = {name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None}
    assert any("vision_tower" in name for name in expected) and any("projector" in name for name in expected)

    model.module.zero_grad()
    sequences = (merged if merge else unmerged)(trained, weights)
    accumulate(model, sequences, Objective(loss=Reinforce()), budget, exactness)
    found = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert float((found[name] - wanted).abs().max()) <= 1e-10, name


def test_different_pictures_are_different_tokens_and_equal_ones_are_shared(drawn: Drawn) -> None:
    trained = drawn.trained
    sequences = merged(trained, [1.0] * len(trained))
    by_rollout = {trained[int(s.entries.transition_N[0])].transition.rollout_id: list(s.ids) for s in sequences}
    start = len(INSTRUCTIONS)
    red, again, blue = (by_rollout[name][start : start + IMAGE_TOKENS] for name in ("ro-0", "ro-1", "ro-2"))
    assert red == again
    assert not set(red) & set(blue)
    assert len(sequences[0].images) == 3


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2)])
def test_a_step_trains_calls_with_images(drawn: Drawn, lora: LoraOptions | None) -> None:
    model = PolicyModel.load(drawn.folder)
    updater = Updater(model, UpdateConfig(learning_rate=1e-3, lora=lora))
    before = {name: tensor.clone() for name, tensor in model.weights().items()}
    report = updater.step(drawn.trained)
    assert (report.transitions, report.skipped) == (len(drawn.trained), {})
    assert report.importance_ratio_deviation <= 1e-5
    changed = {name for name, tensor in model.weights().items() if not torch.equal(tensor, before[name])}
    assert any("language_model" in name for name in changed)


def test_the_new_weights_are_those_of_the_engine(drawn: Drawn) -> None:
    """After an update, the engine's log-probabilities are the trainer's, those of pictures included."""
    model = PolicyModel.load(drawn.folder)

    async def served() -> list[Transition]:
        engine = EmbeddedEngine(model.module, name="tiny", tokenizer=str(drawn.folder))
        await engine.start()
        Updater(model, UpdateConfig(learning_rate=1e-2)).step(drawn.trained)
        await engine.update_weights(model.weights(), 1)
        found: list[Transition] = []
        for item in drawn.trained:
            call = item.transition
            given = GenerateRequest(
                request_id="r",
                prompt_ids=list(call.prompt_ids),
                images=call.images,
                sampling=Sampling(max_tokens=5, seed=3),
            )
            chunks = [chunk async for chunk in engine.generate(given)]
            found.append(
                replace(
                    call,
                    response_ids=token_ids(token for chunk in chunks for token in chunk.ids),
                    logprobs=log_probs(value for chunk in chunks for value in chunk.logprobs),
                    temperature=1.0,
                    sampling=None,
                )
            )
        await engine.close()
        return found

    assert np.abs(recomputed(model, asyncio.run(served()))).max() <= 1e-5


def test_a_critic_reads_the_images_of_its_states(drawn: Drawn) -> None:
    model = PolicyModel.load(drawn.folder)
    critic = Critic.beside_policy(model)
    torch.nn.init.normal_(critic.head.weight)
    calls = [item.transition for item in drawn.trained]
    values = critic.values(calls, None, BRANCHES)
    red, again, blue = values[0], values[2], values[4]
    assert red == pytest.approx(again, abs=1e-5)
    assert abs(red - blue) > 1e-3


def test_a_policy_without_vision_skips_calls_with_images_and_names_them(drawn: Drawn) -> None:
    updater = Updater(tiny_policy(), UpdateConfig(learning_rate=1e-3))
    with_images = [item for item in drawn.trained if item.transition.images]
    text = WeightedTransition(transition=transition([1, 2, 3], [4], [-1.0]), advantage=1.0)
    report = updater.step([*with_images, text])
    assert report.skipped == {"images": len(with_images)}
    with pytest.raises(TrainingError, match=r"skipped \{'images':"):
        updater.step(with_images)


def test_why_images_cannot_be_read_is_named(drawn: Drawn) -> None:
    call = next(item.transition for item in drawn.trained if item.transition.images)
    model = PolicyModel.load(drawn.folder)
    assert model.images.why_not(call) == ""
    assert "reads no images" in tiny_policy().images.why_not(call)
    image = call.images[0]
    longer = PromptImage(digest=image.digest, data=image.data, start=image.start, tokens=image.tokens - 1)
    broken = PromptImage(digest="0" * 64, data=b"no picture", start=image.start, tokens=image.tokens)
    assert "other numbers of tokens" in model.images.why_not(replace(call, images=(longer,)))
    assert "cannot be read: it is not an image file" in model.images.why_not(replace(call, images=(broken,)))
    with pytest.raises(TrainingError, match="an image of a prompt cannot be read"):
        replay(model, [WeightedTransition(transition=replace(call, images=(broken,)), advantage=0.0)], None, PLAIN)
