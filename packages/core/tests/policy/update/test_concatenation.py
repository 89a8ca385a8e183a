"""Concatenate and mask, against sequences written by hand and a loss in plain torch."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.encoding.images import PromptImage
from leyden.core.policy.capability_checks import prove
from leyden.core.policy.logprobs import score
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.concatenation import Concatenated, concatenated
from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.gradient import accumulate
from leyden.core.policy.update.merge import merged
from leyden.core.policy.update.objective import Objective
from leyden.core.testing.factories import transition
from leyden.core.testing.policies import TinyShape, tiny_policy

TINY = TinyShape(vocab=32, hidden=16, intermediate=32, layers=1, heads=2)


def weighted(calls: Sequence[tuple[list[int], list[int]]], rollout_id: str = "a") -> list[WeightedTransition]:
    return [
        WeightedTransition(transition=transition(*call, rollout_id=rollout_id, span_id=f"{rollout_id}{n}"), advantage=1)
        for n, call in enumerate(calls)
    ]


def prompts(found: Concatenated) -> list[list[int]]:
    return [list(item.transition.prompt_ids) for item in found.transitions]


def test_calls_that_extend_each_other_keep_their_prompts() -> None:
    calls = [([1, 2], [3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6], [7])]

    found = concatenated(weighted(calls), None)

    assert prompts(found) == [prompt for prompt, _ in calls]
    assert (found.moved, found.moved_tokens, found.cut) == (0, 0, [])


def test_any_other_prompt_is_appended_as_a_whole() -> None:
    found = concatenated(weighted([([1, 2], [3]), ([9, 9], [8]), ([1, 2, 3, 4], [5, 6])]), None)

    assert prompts(found) == [[1, 2], [1, 2, 3, 9, 9], [1, 2, 3, 9, 9, 8, 1, 2, 3, 4]]
    assert (found.moved, found.moved_tokens) == (2, 3)


def test_a_prompt_that_extends_an_appended_one_adds_only_what_is_new() -> None:
    found = concatenated(weighted([([1, 2], [3]), ([9, 9], [8]), ([9, 9, 8, 7], [6])]), None)

    assert prompts(found)[-1] == [1, 2, 3, 9, 9, 8, 7]
    assert found.moved == 2


def test_a_sequence_ends_before_the_first_call_that_does_not_fit() -> None:
    trained = [
        *weighted([([1, 2], [3]), ([9] * 5, [8, 8]), ([1, 2, 3], [4])]),
        *weighted([([1, 2], [3])], "b"),
        *weighted([([1] * 9, [3])], "c"),
    ]

    found = concatenated(trained, 9)

    assert [item.transition.span_id for item in found.transitions] == ["a0", "b0"]
    assert [call.span_id for call in found.cut] == ["a1", "a2", "c0"]
    assert [list(call.prompt_ids) for call in found.cut[:2]] == [[9] * 5, [1, 2, 3]], "as they were sampled"
    assert len(concatenated(trained, 10).transitions) == 4


def test_the_metrics_are_those_of_the_mask() -> None:
    trained = [*weighted([([1, 2], [3]), ([9, 9], [8, 8])]), *weighted([([1, 2], [3, 4, 5])], "b")]

    assert concatenated(trained, None).metrics() == {
        "concatenated_sequences": 2,
        "concatenated_tokens_mean": 6.0,
        "concatenated_tokens_max": 7,
        "masked_share": 0.5,
        "calls_out_of_context": 1,
        "out_of_context_share": pytest.approx(1 / 3),
    }
    assert concatenated([], None).metrics() == {}


@st.composite
def rollouts(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Calls of one rollout; many prompts extend the sequence, or an earlier call."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 8))):
        begun = random_.choice([[0], *(prompt + response for prompt, response in calls)])
        calls.append((begun + [random_.randrange(2) for _ in range(random_.randrange(3))], [random_.randrange(2)]))
    return calls


@given(rollouts())
def test_the_update_reads_a_rollout_as_one_sequence(calls: list[tuple[list[int], list[int]]]) -> None:
    trained = weighted(calls)
    found = concatenated(trained, None)

    (sequence,) = merged(found.transitions, [1.0] * len(trained))

    entries = sequence.entries
    assert [sequence.ids[at + 1] for at in entries.position_N] == entries.target_N.tolist()
    assert entries.target_N.tolist() == [token for _, response in calls for token in response]
    for (prompt, _), item in zip(calls, found.transitions, strict=True):
        read = list(item.transition.prompt_ids)
        assert read[len(read) - len(prompt) :] == prompt, "a call still reads its own prompt last"
    assert found.moved == sum(
        len(item.transition.prompt_ids) != len(prompt)
        for (prompt, _), item in zip(calls, found.transitions, strict=True)
    )


def test_images_move_with_their_prompts() -> None:
    def image(digest: str, start: int) -> PromptImage:
        return PromptImage(digest=digest, data=b"", start=start, tokens=2)

    calls = [
        transition([1, 7, 7], [3], images=(image("x", 1),)),
        transition([7, 7], [4], images=(image("y", 0),)),
        transition([7, 7, 4, 5, 7, 7], [4], images=(image("y", 0), image("z", 4))),
        transition([7, 7, 4, 5, 7, 7, 4], [6], images=(image("x", 0), image("z", 4))),
    ]
    found = concatenated([WeightedTransition(transition=call, advantage=1.0) for call in calls], None)

    last = found.transitions[-1].transition
    assert list(last.prompt_ids) == [1, 7, 7, 3, 7, 7, 4, 5, 7, 7, 4, 7, 7, 4, 5, 7, 7, 4]
    assert [(i.digest, i.start) for i in last.images] == [("x", 1), ("y", 4), ("z", 8), ("x", 11), ("z", 15)]


@pytest.fixture(scope="module")
def model() -> PolicyModel:
    return tiny_policy(shape=TINY)


def test_the_gradient_is_that_of_one_masked_sequence_in_plain_torch(model: PolicyModel) -> None:
    # The second call is another agent's, and the third continues the first.
    calls = [([1, 2, 3], [4, 5]), ([9, 10], [11, 12, 13]), ([1, 2, 3, 4, 5, 6], [7])]
    ids = [1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 1, 2, 3, 4, 5, 6, 7]
    mask = [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    trained: list[WeightedTransition] = []
    for prompt, response in calls:
        sampled = score(model, prompt + response)[len(prompt) - 1 :]
        trained.append(WeightedTransition(transition=transition(prompt, response, sampled), advantage=-0.7))

    model.module.zero_grad()
    logits_TV = model.module(input_ids=torch.tensor([ids])).logits[0]
    logprobs_T = logits_TV.log_softmax(-1)[range(len(ids) - 1), ids[1:]][torch.tensor(mask[1:]) == 1]
    sampled_T = torch.tensor([value for item in trained for value in item.transition.logprobs])
    ratio_T = (logprobs_T - sampled_T).exp()
    loss = -torch.minimum(ratio_T * -0.7, ratio_T.clamp(0.8, 1.2) * -0.7).mean()
    torch.autograd.backward(loss)
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]

    found = concatenated(trained, None).transitions
    sequences = merged(found, step_weights(found, "token"))
    model.module.zero_grad()
    objective = Objective(loss=PPOClip(clip_low=0.2, clip_high=0.2))
    result = accumulate(model, sequences, objective, None, prove(model))

    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-7)
