"""Truncated responses: the engine records the tokens that were left, and the trainer computes with the same ones."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from leyden.core.data.encoding.token_sets import pack_token_sets
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Transition
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.errors import TrainingError
from leyden.core.policy.capability_checks import prove
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import replay
from leyden.core.policy.update.entries import WeightedTransition
from leyden.core.testing.factories import transition
from leyden.core.testing.policies import tiny_policy

SAMPLINGS = [
    Sampling(top_k=5, max_tokens=20),
    Sampling(min_p=0.1, temperature=0.8, max_tokens=20),
    Sampling(top_p=0.7, max_tokens=20),
    Sampling(top_p=0, max_tokens=20),
    Sampling(top_k=20, top_p=0.9, min_p=0.01, presence_penalty=1.0, max_tokens=25),
    Sampling(max_tokens=20),
]


async def sampled(model: PolicyModel, sampling: Sampling, seed: int) -> Transition:
    engine = EmbeddedEngine(model.module, name="tiny")
    await engine.start()
    request = GenerateRequest(request_id="r", prompt_ids=[3, 1, 4], sampling=replace_seed(sampling, seed))
    ids, logprobs, kept = list[int](), list[float](), list[np.ndarray]()
    async for chunk in engine.generate(request):
        ids += chunk.ids
        logprobs += chunk.sampling_logprobs
        kept += [] if chunk.kept is None else [chunk.kept]
    await engine.close()
    assert bool(kept) == sampling.truncates
    return transition(
        [3, 1, 4],
        ids,
        logprobs,
        temperature=sampling.temperature,
        sampling=sampling if sampling.truncates else None,
        kept=pack_token_sets(kept) if kept else None,
        span_id=f"s{seed}",
    )


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    import msgspec

    return msgspec.structs.replace(sampling, seed=seed)


async def test_first_ratios_are_1() -> None:
    model = tiny_policy()
    found = await asyncio.gather(*(sampled(model, one, seed) for seed, one in enumerate(SAMPLINGS * 2)))
    trained = [WeightedTransition(transition=one, advantage=1.0) for one in found]
    for logprobs, one in zip(replay(model, trained, None, prove(model)), found, strict=True):
        assert np.exp(logprobs - np.array(one.logprobs)) == pytest.approx(1, abs=1e-5)


async def test_a_response_that_its_record_excludes_is_refused() -> None:
    model = tiny_policy()
    found = await sampled(model, SAMPLINGS[0], 1)
    nothing = pack_token_sets([np.zeros((len(found.response_ids), 2), dtype=np.int32)])
    for kept in (nothing, b"broken"):
        with pytest.raises(TrainingError, match="call s1 of rollout"):
            model.adjusted_responses.of(replace(found, kept=kept))
