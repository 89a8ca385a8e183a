"""Responses sampled with grammars, penalties and biases: recomputed as they were sampled, and trained exactly.

The reference enumerates the mask over the vocabulary, for one token at a time, without any batching.
"""

import asyncio
import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional
from torch import Tensor

from leyden.core.data.encoding.tokens import log_probs
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Transition
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.errors import TrainingError
from leyden.core.gateway.codec import Forced
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.grammar.rules import AnswerFormat
from leyden.core.policy import logprobs as logprobs_module
from leyden.core.policy.adjusted_responses import AdjustedResponses
from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.losses.base import Loss, LossEntries
from leyden.core.policy.losses.dpo import DPO
from leyden.core.policy.losses.registry import LOSSES
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.replay import replay
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import TokenMeasures, WeightedTransition, behaviour, step_weights
from leyden.core.policy.update.gradient import accumulate
from leyden.core.policy.update.merge import merged, unmerged
from leyden.core.policy.update.objective import Objective
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.factories import transition
from leyden.core.testing.finite_language import SIZE, FiniteLanguage
from leyden.core.testing.policies import TinyShape, tiny_policy, with_adapters
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

ANSWERS = ["a", "ab", "ba", "bba", "c", "ca"]
GRAMMAR = 'start: "a" "b"? | "b" "b"? "a" | "c" "a"?'
PLAIN = Capabilities(plain_head=True, shared_prefix=False)
SHARED = Capabilities(plain_head=True, shared_prefix=True)
BRANCHES = Capabilities(plain_head=True, shared_prefix=True, branches=True)
WHOLE_MODEL = Capabilities(plain_head=False, shared_prefix=False)
HERMES = (
    '{{ "<tool_call> </tool_call>" if false }}{{ \'"arguments"\' if false }}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
        },
    }
    for name in ("add", "and")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_tiny_tokenizer(folder, HERMES)
    return folder


def policy(folder: Path) -> PolicyModel:
    return PolicyModel(tiny_policy(shape=TinyShape(vocab=SIZE)).module, folder)


def samplings(folder: Path) -> list[Sampling]:
    codec = HuggingFaceCodec(folder)
    kinds = [
        codec.grammar(TOOLS, Forced(), None),
        codec.grammar(TOOLS, Forced(name="and"), None, only_one_call=True),
        codec.grammar(TOOLS, None, AnswerFormat(kind="json", text='{"properties": {"a": {"type": "boolean"}}}')),
        GRAMMAR,
        "",
    ]
    assert all(kinds[:4])
    others: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3},
        {"logit_bias": ((70, 3.0), (71, -100.0))},
    ]
    return [
        Sampling(grammar=kind, temperature=1.0 if n % 2 else 0.7, max_tokens=20, **other)
        for n, kind in enumerate(kinds)
        for other in others
    ]


async def sampled(model: PolicyModel, folder: Path) -> list[WeightedTransition]:
    """Rollouts of two calls, the second of which goes on from the first; some begin alike."""
    codec, draw = HuggingFaceCodec(folder), random.Random(0)
    system = [draw.randrange(3, 260) for _ in range(24)]
    engine = EmbeddedEngine(model.module, name="m", tokenizer=str(folder))
    await engine.start()

    async def rollout(number: int, sampling: Sampling) -> list[WeightedTransition]:
        context, calls = [*system, number % 3 + 60, 61], list[WeightedTransition]()
        for turn in range(2):
            request = GenerateRequest(
                request_id=f"{number}-{turn}", prompt_ids=context, sampling=sampling, stop_ids=codec.stop_ids
            )
            chunks = [chunk async for chunk in engine.generate(request)]
            response = [token for chunk in chunks for token in chunk.ids]
            call = transition(
                context,
                response,
                [value for chunk in chunks for value in chunk.sampling_logprobs],
                rollout_id=f"r{number}",
                span_id=f"r{number}-{turn}",
                temperature=sampling.temperature,
                sampling=sampling if sampling.adjusts_logits else None,
            )
            calls.append(WeightedTransition(transition=call, advantage=1.0 - number % 3))
            context = [*context, *response, 80, 81, 82]
        return calls

    try:
        found = await asyncio.gather(*(rollout(*one) for one in enumerate(samplings(folder))))
    finally:
        await engine.close()
    return [call for calls in found for call in calls]


@pytest.fixture(scope="module")
def drawn(folder: Path) -> list[WeightedTransition]:
    return asyncio.run(sampled(policy(folder), folder))


@pytest.fixture(scope="module")
def drawn_with_adapters(folder: Path) -> list[WeightedTransition]:
    model = with_adapters(policy(folder), LoraOptions(rank=2))
    served = policy(folder)
    served.module.load_state_dict(model.weights(), strict=False)
    return asyncio.run(sampled(served, folder))


def largest_gap(found: Sequence[Any], drawn: Sequence[WeightedTransition]) -> float:
    return max(
        float(np.abs(np.exp(one - behaviour(item.transition)) - 1).max())
        for one, item in zip(found, drawn, strict=True)
    )


@pytest.mark.parametrize("exactness", [PLAIN, SHARED, BRANCHES, WHOLE_MODEL])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("chunk_elements", [logprobs_module.CHUNK_ELEMENTS, 3 * SIZE])
def test_the_first_importance_ratios_are_one(
    folder: Path,
    drawn: list[WeightedTransition],
    monkeypatch: pytest.MonkeyPatch,
    exactness: Capabilities,
    merge: bool,
    chunk_elements: int,
) -> None:
    monkeypatch.setattr(
        logprobs_module,
        "head_logprobs",
        functools.partial(logprobs_module.head_logprobs, chunk_elements=chunk_elements),
    )
    model = policy(folder)

    for one in (model, model.frozen_copy()):
        assert largest_gap(replay(one, drawn, 200, exactness, merge=merge), drawn) < 1e-5


def test_without_the_grammar_the_ratios_would_not_be_one(folder: Path, drawn: list[WeightedTransition]) -> None:
    """So that the test above can fail."""
    bare = [replace(item, transition=replace(item.transition, sampling=None)) for item in drawn]

    assert largest_gap(replay(policy(folder), bare, 200, SHARED), drawn) > 0.1


@pytest.mark.parametrize("settings", [{}, {"minibatches": 3}, {"epochs": 2}, {"lora": LoraOptions(rank=2)}])
def test_the_recorded_losses_of_such_tokens_add_up_to_the_logged_loss(
    folder: Path, drawn: list[WeightedTransition], settings: dict[str, Any]
) -> None:
    report = Updater(policy(folder), UpdateConfig(learning_rate=1e-3, **settings)).step(drawn)

    numbers = [call.numbers for call in report.calls]
    assert math.fsum(loss for own in numbers for loss in own.losses) == pytest.approx(report.loss, abs=1e-6)
    assert len(numbers) == len(drawn)
    if "minibatches" not in settings:  # the first pass still has the weights that sampled
        assert max(float(np.abs(own.log_ratios).max()) for own in numbers) < 1e-5


def test_ratios_are_one_with_adapters_and_without_them_for_the_reference(
    folder: Path, drawn_with_adapters: list[WeightedTransition]
) -> None:
    model = with_adapters(policy(folder), LoraOptions(rank=2))
    reference = replay(model.frozen_copy(), drawn_with_adapters, 200, BRANCHES)
    original = replay(policy(folder), drawn_with_adapters, 200, PLAIN)

    assert largest_gap(replay(model, drawn_with_adapters, 200, BRANCHES), drawn_with_adapters) < 1e-5
    assert all(np.allclose(one, other, atol=1e-5) for one, other in zip(reference, original, strict=True))


def in_float64(model: PolicyModel) -> PolicyModel:
    """The model in float64 throughout; transformers' own RMS norm would round to float32 in between."""

    def norm(module: Any, hidden: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)

    model.module.double()
    for module in model.module.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = functools.partial(norm, module)
    return model


def by_hand(model: PolicyModel, call: Transition, language: FiniteLanguage) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each token, with the mask that the language's answers imply."""
    sampling = call.sampling
    assert sampling is not None
    found: list[Tensor] = []
    entropies: list[Tensor] = []
    for at, target in enumerate(call.response_ids):
        before = list(call.response_ids[:at])
        logits_V = model.module(input_ids=torch.tensor([[*call.prompt_ids, *before]])).logits[0, -1]
        scale, shift = torch.ones_like(logits_V), torch.zeros_like(logits_V)
        for token in {*call.prompt_ids, *before}:
            positive = logits_V[token] + dict(sampling.logit_bias).get(token, 0.0) > 0
            scale[token] = 1 / sampling.repetition_penalty if positive else sampling.repetition_penalty
        for token, count in Counter(before).items():
            shift[token] = -count * sampling.frequency_penalty - sampling.presence_penalty
        bias_V = torch.zeros_like(logits_V)
        for token, bias in sampling.logit_bias:
            bias_V[token] = bias
        logits_V = ((logits_V + bias_V) * scale + shift) / call.temperature
        if sampling.grammar:
            allowed = sorted(language.allowed(before))
            logits_V = logits_V[allowed]
            target = allowed.index(int(target))
        logprobs_V = logits_V - logits_V.logsumexp(0)
        found.append(logprobs_V[int(target)])
        entropies.append(-(logprobs_V.exp() * logprobs_V).sum())
    return torch.stack(found), torch.stack(entropies)


def expected_loss(
    model: PolicyModel,
    trained: Sequence[WeightedTransition],
    objective: Objective,
    weights: Sequence[float],
    language: FiniteLanguage,
) -> Tensor:
    parts = [by_hand(model, item.transition, language) for item in trained]
    counts = [len(logprobs_T) for logprobs_T, _ in parts]
    measured = [item.measured or TokenMeasures.nothing(item.transition) for item in trained]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(np.repeat(values, counts), dtype=torch.float64)

    return objective.of(
        LossEntries(
            transition_N=torch.tensor(np.repeat(np.arange(len(counts)), counts)),
            logprobs_N=torch.cat([logprobs_T for logprobs_T, _ in parts]),
            entropy_N=torch.cat([entropy_T for _, entropy_T in parts]),
            proximal_N=torch.tensor(np.concatenate([one.proximal_T for one in measured])),
            reference_N=torch.tensor(np.concatenate([one.reference_T for one in measured])),
            advantages_N=column([item.advantage for item in trained]),
            weights_N=column(weights),
        )
    ).value


def language_rollouts(language: FiniteLanguage) -> list[WeightedTransition]:
    """Pairs of answers to one prompt, in the tokens that the library allows; log-probabilities near those sampled."""
    draw, found = random.Random(1), list[WeightedTransition]()
    system = [draw.randrange(3, 260) for _ in range(20)]
    kinds = [
        Sampling(grammar=GRAMMAR),
        Sampling(grammar=GRAMMAR, repetition_penalty=1.4, frequency_penalty=0.3),
        Sampling(grammar=GRAMMAR, presence_penalty=0.5, logit_bias=((70, 1.0), (68, -2.0))),
        Sampling(repetition_penalty=0.8, logit_bias=((70, 2.0),)),
    ]
    for number in range(12):
        ids = list[int]()
        while not ids or ids[-1] not in language.ends:
            ids.append(draw.choice(sorted(language.allowed(ids))))
        call = transition(
            [*system, 60 + number // 2 % 2],
            ids,
            [draw.uniform(-2.0, -0.5) for _ in ids],
            rollout_id=f"r{number}",
            span_id=f"r{number}",
            temperature=draw.choice((0.7, 1.0)),
            sampling=kinds[number // 2 % 4],
        )
        base = TokenMeasures.nothing(call)
        measured = replace(base, reference_T=base.proximal_T - 0.2)
        found.append(WeightedTransition(transition=call, advantage=(-1.0) ** number, measured=measured))
    return found


def losses() -> Mapping[str, Callable[[], Loss]]:
    return {name: functools.partial(LOSSES.make, name) for name in LOSSES.names()} | {"dpo": DPO}


@pytest.mark.parametrize("name", sorted(losses()))
def test_gradients_equal_those_of_the_enumerated_mask(folder: Path, name: str) -> None:
    model, language = in_float64(policy(folder)), FiniteLanguage(folder, ANSWERS)
    loss = losses()[name]()
    kl = 0.1 if loss.reads_advantages else 0.0
    objective = Objective(loss=loss, kl=kl, entropy=0.0)
    trained = language_rollouts(language)
    weights = step_weights(trained, "token")
    model.module.zero_grad()
    expected = expected_loss(model, trained, objective, weights, language)
    torch.autograd.backward(expected)
    reference = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()

    assert reference.abs().max() > 0
    for exactness, merge in ((PLAIN, False), (SHARED, True), (BRANCHES, True), (WHOLE_MODEL, False)):
        if loss.together > 1 and merge:
            continue
        model.module.zero_grad()
        sequences = (merged if merge else unmerged)(trained, weights)
        found = accumulate(model, sequences, objective, 100, exactness)
        own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert found.loss == pytest.approx(expected.item(), rel=1e-8)
        assert (own - reference).square().sum() / reference.square().sum() < 1e-16


def test_the_entropy_bonus_counts_allowed_tokens_only(folder: Path) -> None:
    model, language = in_float64(policy(folder)), FiniteLanguage(folder, ANSWERS)
    objective = Objective(loss=LOSSES.make("reinforce"), entropy=0.3)
    trained = language_rollouts(language)
    weights = step_weights(trained, "token")
    model.module.zero_grad()
    expected = expected_loss(model, trained, objective, weights, language)
    torch.autograd.backward(expected)
    reference = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()
    model.module.zero_grad()
    found = accumulate(model, merged(trained, weights), objective, 100, BRANCHES)
    own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    assert found.loss == pytest.approx(expected.item(), rel=1e-8)
    assert (own - reference).square().sum() / reference.square().sum() < 1e-16


def test_what_cannot_be_recomputed_is_named(folder: Path) -> None:
    responses, language = AdjustedResponses(str(folder), SIZE), FiniteLanguage(folder, ANSWERS)
    a = next(token for token in language.allowed([]) if language.text([token]) == b"a")
    fitting = transition([5], [a, language.ends[0]], sampling=Sampling(grammar=GRAMMAR))
    misfits = {
        "does not allow": replace(fitting, response_ids=transition(response=[a, a]).response_ids),
        "invalid": replace(fitting, sampling=Sampling(grammar="start: /(/")),
        "outside": replace(fitting, response_ids=transition(response=[SIZE]).response_ids),
        "vocabulary": replace(fitting, sampling=Sampling(logit_bias=((SIZE, 1.0),))),
    }

    assert responses.why_not(fitting) == ""
    assert responses.why_not(replace(fitting, sampling=None)) == ""
    assert len(responses.of(fitting)) == 2
    for reason, call in misfits.items():
        assert reason in responses.why_not(call)
    with pytest.raises(TrainingError, match="of rollout ro"):
        responses.of(misfits["does not allow"])


def test_adjustments_are_kept_for_copies_of_a_call_and_only_for_them(folder: Path) -> None:
    responses = AdjustedResponses(str(folder), SIZE)
    call = transition([5, 6], [7, 8], sampling=Sampling(repetition_penalty=2.0))
    first = responses.of(call)

    assert responses.of(replace(call, policy="side", logprobs=log_probs([0.0, 0.0]))) is first
    assert responses.of(replace(call, sampling=Sampling(presence_penalty=1.0))) is not first
    assert math.isclose(responses.of(call)[0].sampling.repetition_penalty, 2.0)
