"""The accumulated gradient against a brute-force loop: one plain forward pass per trained token, no batching at all."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional
from torch import Tensor, nn

from leyden.core.policy.capability_checks import Capabilities, prove
from leyden.core.policy.logprobs import head_logprobs, score
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.options import LoraOptions
from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.gradient import accumulate
from leyden.core.policy.update.merge import merged, unmerged
from leyden.core.policy.update.objective import Objective
from leyden.core.testing.policies import RolloutShape, TinyShape, synthetic_rollouts, tiny_policy

VOCAB = 64
LONG_PREFIX = RolloutShape(system=20, question=3, calls=(4, 3), observation=4)
PLAIN = Capabilities(plain_head=True, shared_prefix=False)
SHARED = Capabilities(plain_head=True, shared_prefix=True)
BRANCHES = Capabilities(plain_head=True, shared_prefix=True, branches=True)
WHOLE_MODEL = Capabilities(plain_head=False, shared_prefix=False)
LOSS = Objective(loss=PPOClip(clip_low=0.2, clip_high=0.3))


def in_float64(model: PolicyModel) -> PolicyModel:
    """The model in float64 throughout; transformers' own RMS norm would round to float32 in between."""

    def norm(module: Any, hidden: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)

    model.module.double()
    for module in model.module.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = functools.partial(norm, module)
    return model


@pytest.fixture(scope="module")
def model() -> PolicyModel:
    return in_float64(tiny_policy())


@pytest.fixture(scope="module")
def trained(model: PolicyModel) -> list[WeightedTransition]:
    """Rollouts whose behaviour log-probabilities lie around the policy's own, so that some tokens clip."""
    drawn = synthetic_rollouts(6, VOCAB, shape=LONG_PREFIX, single_call_share=0.3)
    for item in drawn:
        t = item.transition
        ids = [*t.prompt_ids, *t.response_ids]
        for j, value in enumerate(score(model, ids)[len(t.prompt_ids) - 1 :]):
            t.logprobs[j] = value + 0.3 * math.sin(j + item.advantage)
    return drawn


def brute_force_loss(model: PolicyModel, trained: Sequence[WeightedTransition]) -> Tensor:
    tokens = sum(len(item.transition.response_ids) for item in trained)
    total = torch.zeros((), dtype=model.dtype)
    for item in trained:
        t = item.transition
        for j, target in enumerate(t.response_ids):
            read = torch.tensor([[*t.prompt_ids, *t.response_ids[:j]]])
            logits_V: Tensor = model.module(input_ids=read).logits[0, -1] / t.temperature
            ratio = (logits_V[target] - logits_V.logsumexp(0) - t.logprobs[j]).exp()
            clipped = ratio.clamp(0.8, 1.3)
            total = total - torch.minimum(ratio * item.advantage, clipped * item.advantage) / tokens
    return total


def gradient(model: PolicyModel) -> Tensor:
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert len(found) == len(list(model.parameters()))
    return torch.cat(found)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).square().sum() / expected.square().sum()).sqrt().item()


@pytest.fixture(scope="module")
def expected(model: PolicyModel, trained: list[WeightedTransition]) -> tuple[float, Tensor]:
    model.module.zero_grad()
    loss = brute_force_loss(model, trained)
    torch.autograd.backward(loss)
    return loss.item(), gradient(model).clone()


@pytest.mark.parametrize("exactness", [PLAIN, SHARED, BRANCHES, WHOLE_MODEL])
@pytest.mark.parametrize("budget", [1, 64, 100_000])
@pytest.mark.parametrize("merge", [True, False])
def test_gradient_equals_brute_force_however_it_is_computed(
    model: PolicyModel,
    trained: list[WeightedTransition],
    expected: tuple[float, Tensor],
    exactness: Capabilities,
    budget: int,
    merge: bool,
) -> None:
    weights = step_weights(trained, "token")
    sequences = (merged if merge else unmerged)(trained, weights)
    model.module.zero_grad()

    result = accumulate(model, sequences, LOSS, budget, exactness)

    expected_loss, expected_gradient = expected
    assert 0 < result.diagnostics.clip_fraction < 1
    assert result.loss == pytest.approx(expected_loss, rel=1e-10)
    assert relative_error(gradient(model), expected_gradient) < 1e-10


@pytest.mark.parametrize("vocab", [2, 7, VOCAB])
@pytest.mark.parametrize("budget", [50, 100_000])
def test_what_a_groups_rollouts_begin_with_is_read_once(model: PolicyModel, vocab: int, budget: int) -> None:
    """With few tokens to choose from answers begin alike, too, and some are the same."""
    short = RolloutShape(system=20, question=6, calls=(5, 3), observation=2)
    trained = synthetic_rollouts(12, vocab, shape=short, single_call_share=0.3, group_size=4)
    sequences = merged(trained, step_weights(trained, "token"))
    model.module.zero_grad()
    torch.autograd.backward(brute_force_loss(model, trained))
    expected = gradient(model).clone()

    read: list[int] = []
    for exactness in (SHARED, BRANCHES):
        model.module.zero_grad()
        read.append(accumulate(model, sequences, LOSS, budget, exactness).tokens_read)
        assert relative_error(gradient(model), expected) < 1e-10

    assert read[1] < read[0]


def test_merging_and_sharing_read_fewer_tokens(model: PolicyModel, trained: list[WeightedTransition]) -> None:
    weights = step_weights(trained, "token")
    read = [
        accumulate(model, sequences, LOSS, 10_000, exactness).tokens_read
        for sequences, exactness in (
            (unmerged(trained, weights), PLAIN),
            (merged(trained, weights), PLAIN),
            (merged(trained, weights), SHARED),
        )
    ]

    assert read == sorted(read, reverse=True)
    assert len(set(read)) == 3


@pytest.mark.parametrize("lora", [False, True])
def test_in_float32_batching_changes_the_gradient_by_rounding_only(
    trained: list[WeightedTransition], lora: bool
) -> None:
    model = tiny_policy()
    if lora:
        model.adapt(LoraOptions(rank=3))
        model.load_weights({name: tensor + 0.1 for name, tensor in model.trained_weights().items()})
    sequences = merged(trained, step_weights(trained, "token"))
    gradients: list[Tensor] = []
    for exactness, budget in ((PLAIN, 1), (PLAIN, 500), (SHARED, 100_000)):
        model.module.zero_grad()
        accumulate(model, sequences, LOSS, budget, exactness)
        gradients.append(gradient(model).clone())

    for other in gradients[1:]:
        assert relative_error(other, gradients[0]) < 1e-5


def test_gradient_equals_finite_differences_of_the_loss(
    model: PolicyModel, trained: list[WeightedTransition], expected: tuple[float, Tensor]
) -> None:
    direction = torch.randn(len(expected[1]), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope = torch.dot(expected[1], direction).item()
    step = 1e-6

    def loss_at(distance: float) -> float:
        sequences = merged(trained, step_weights(trained, "token"))
        start = 0
        for parameter in model.parameters():
            parameter.data += distance * direction[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return accumulate(model, sequences, LOSS, 10_000, SHARED).loss

    up = loss_at(step)
    down = loss_at(-2 * step)
    loss_at(step)

    assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-4)


def test_chunks_of_the_head_change_neither_values_nor_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(8, 30, bias=False, dtype=torch.float64)
    target_N = torch.randint(30, (11,), generator=generator)
    temperature_N = torch.rand(11, generator=generator, dtype=torch.float64) + 0.5
    values: list[tuple[Tensor, ...]] = []
    for chunk_elements in (1, 100, 10_000):
        hidden_NH = torch.randn(11, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        hidden_NH.requires_grad_()
        logprobs_N, entropy_N = head_logprobs(head, hidden_NH, target_N, temperature_N, chunk_elements)
        by_hidden, by_weight = torch.autograd.grad(logprobs_N.square().sum(), [hidden_NH, head.weight])
        values.append((logprobs_N.detach(), entropy_N, by_hidden, by_weight))

    for other in values[1:]:
        for one, another in zip(values[0], other, strict=True):
            torch.testing.assert_close(one, another, rtol=1e-12, atol=1e-14)


def test_temperature_and_entropy_equal_a_plain_softmax() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    weights = [math.exp(value / 0.5) for value in (2.0, 0.0, -1.0)]
    chances = [weight / sum(weights) for weight in weights]

    logprobs_N, entropy_N = head_logprobs(nn.Identity(), logits, torch.tensor([1]), torch.tensor([0.5]))

    assert logprobs_N.item() == pytest.approx(math.log(chances[1]), rel=1e-12)
    assert entropy_N.item() == pytest.approx(-sum(chance * math.log(chance) for chance in chances), rel=1e-12)


def test_score_is_the_raw_log_probability_of_each_next_token(model: PolicyModel) -> None:
    ids = [3, 1, 4, 1, 5]
    expected = [
        model.module(input_ids=torch.tensor([ids[:n]])).logits[0, -1].log_softmax(-1)[ids[n]].item()
        for n in range(1, len(ids))
    ]

    assert score(model, ids) == pytest.approx(expected, abs=1e-10)


def test_short_cuts_are_proved_for_qwen3() -> None:
    for shape in (TinyShape(), TinyShape(tied=False)):
        assert prove(tiny_policy(shape=shape)) == BRANCHES


def small_model(family: str) -> PolicyModel:
    """A random model of another family: each breaks, or does not break, one of the short cuts."""
    import transformers

    library: Any = transformers
    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    library.set_seed(0)
    if family == "llama":
        module = library.LlamaForCausalLM(library.LlamaConfig(**size, **heads))
    elif family == "cohere":
        module = library.CohereForCausalLM(library.CohereConfig(**size, **heads, logit_scale=0.0625))
    elif family == "gemma2":
        config = library.Gemma2Config(
            **size, **heads, head_dim=8, sliding_window=16, final_logit_softcapping=0.5, initializer_range=0.5
        )
        module = library.Gemma2ForCausalLM(config)
    elif family == "mistral, eager":
        config = library.MistralConfig(**size, **heads, sliding_window=None, attn_implementation="eager")
        module = library.MistralForCausalLM(config)
    elif family.startswith("qwen2"):
        config = library.Qwen2Config(**size, **heads, use_sliding_window=True, sliding_window=50, max_window_layers=0)
        module = library.Qwen2ForCausalLM(config)
    else:
        module = library.MistralForCausalLM(library.MistralConfig(**size, **heads, sliding_window=16))
    return PolicyModel(module, family)


@pytest.mark.parametrize(
    ("family", "plain_head", "shared_prefix", "branches"),
    [
        ("llama", True, True, True),
        ("cohere", False, True, True),
        ("gemma2", False, False, False),
        ("mistral", True, False, False),
        ("mistral, eager", True, True, False),
        ("qwen2, a window beyond what is proved", True, False, False),
    ],
)
def test_other_families_are_trained_exactly_with_the_short_cuts_they_allow(
    family: str, plain_head: bool, shared_prefix: bool, branches: bool
) -> None:
    model = small_model(family)
    trained = synthetic_rollouts(4, VOCAB, shape=LONG_PREFIX, group_size=2)
    sequences = merged(trained, step_weights(trained, "token"))
    exactness = prove(model)
    model.module.zero_grad()
    torch.autograd.backward(brute_force_loss(model, trained))
    expected = gradient(model).clone()
    model.module.zero_grad()

    accumulate(model, sequences, LOSS, 60, exactness)

    assert exactness == Capabilities(plain_head=plain_head, shared_prefix=shared_prefix, branches=branches)
    assert relative_error(gradient(model), expected) < 1e-4


def test_bfloat16_computes_over_float32_weights(trained: list[WeightedTransition]) -> None:
    full = tiny_policy()
    unclipped = Objective(loss=PPOClip(clip_low=1.0, clip_high=1e6))
    half = PolicyModel(tiny_policy().module, "half", precision="bfloat16")
    sequences = merged(trained, step_weights(trained, "token"))
    for model in (full, half):
        accumulate(model, sequences, unclipped, 500, SHARED)

    cosine = torch.nn.functional.cosine_similarity(gradient(full), gradient(half), dim=0).item()
    assert half.dtype == torch.float32
    assert not torch.equal(gradient(full), gradient(half))
    assert cosine > 0.98
