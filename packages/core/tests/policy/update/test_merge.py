import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.merge import TokenSequence, merged, unmerged
from leyden.core.testing.factories import transition

Entry = tuple[int, int, int, float, float, float, float, tuple[int, ...]]


def weighted(
    rollout_id: str, prompt: Sequence[int], response: Sequence[int], advantage: float = 1.0
) -> WeightedTransition:
    logprobs = [-0.125 * (i + 1) for i, _ in enumerate(response)]
    return WeightedTransition(
        transition=transition(prompt, response, logprobs, rollout_id=rollout_id), advantage=advantage
    )


def entries(sequences: Sequence[TokenSequence]) -> Counter[Entry]:
    """Every entry with the tokens it sees, read off the sequences."""
    found: Counter[Entry] = Counter()
    for sequence in sequences:
        e = sequence.entries
        for n in range(len(e)):
            at = int(e.position_N[n])
            assert sequence.ids[at + 1] == e.target_N[n]
            read = tuple(sequence.ids[: at + 1])
            behaviour, advantage = float(e.proximal_N[n]), float(e.advantage_N[n])
            weight, temperature = float(e.weight_N[n]), float(e.temperature_N[n])
            transition, target = int(e.transition_N[n]), int(e.target_N[n])
            found[(transition, at, target, behaviour, advantage, weight, temperature, read)] += 1
    return found


def by_hand(trained: Sequence[WeightedTransition], weights: Sequence[float]) -> Counter[Entry]:
    """The same from the transitions themselves, token by token."""
    found: Counter[Entry] = Counter()
    for index, (item, weight) in enumerate(zip(trained, weights, strict=True)):
        t = item.transition
        for j, target in enumerate(t.response_ids):
            read = (*t.prompt_ids, *t.response_ids[:j])
            found[(index, len(read) - 1, target, t.logprobs[j], item.advantage, weight, t.temperature, read)] += 1
    return found


@st.composite
def attempts(draw: st.DrawFn) -> list[WeightedTransition]:
    """Calls over a two-letter alphabet; many prompts extend some earlier call, chained, branching or interleaved."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    trained: list[WeightedTransition] = []
    said: dict[str, list[list[int]]] = {"a": [[0]], "b": [[0]]}
    for number in range(draw(st.integers(1, 10))):
        rollout = random_.choice("ab")
        prompt = random_.choice(said[rollout]) + [random_.randrange(2) for _ in range(random_.randrange(3))]
        response = [random_.randrange(2) for _ in range(random_.randrange(1, 4))]
        trained.append(weighted(rollout, prompt, response, advantage=float(number)))
        said[rollout].append(prompt + response)
    return trained


@given(attempts())
def test_merged_or_not_the_entries_are_the_same_and_see_the_same_tokens(trained: list[WeightedTransition]) -> None:
    weights = [0.5 + index for index in range(len(trained))]

    expected = by_hand(trained, weights)

    assert entries(merged(trained, weights)) == expected
    assert entries(unmerged(trained, weights)) == expected


def test_a_chain_of_calls_becomes_one_sequence() -> None:
    trained = [weighted("a", [1, 2], [3]), weighted("a", [1, 2, 3, 4], [5, 6]), weighted("a", [1, 2, 3, 4, 5, 6], [7])]

    (sequence,) = merged(trained, [1.0] * 3)

    assert list(sequence.ids) == [1, 2, 3, 4, 5, 6, 7]
    assert sequence.entries.transition_N.tolist() == [0, 1, 1, 2]
    assert sequence.entries.position_N.tolist() == [1, 3, 4, 5]


def test_a_call_in_between_does_not_break_a_chain() -> None:
    main = [weighted("a", [1, 2], [3]), weighted("a", [1, 2, 3, 4], [5])]
    sub_agent = weighted("a", [9, 9], [8])

    sequences = merged([main[0], sub_agent, main[1]], [1.0] * 3)

    assert [list(sequence.ids) for sequence in sequences] == [[1, 2, 3, 4, 5], [9, 9, 8]]


def test_the_longest_extended_sequence_is_continued() -> None:
    # The same prompt answered twice; the third call's prompt extends both answers.
    trained = [weighted("a", [1], [2]), weighted("a", [1], [2, 3]), weighted("a", [1, 2, 3, 4], [5])]

    for order in ((0, 1, 2), (1, 0, 2)):
        sequences = merged([trained[index] for index in order], [1.0] * 3)
        assert sorted(list(sequence.ids) for sequence in sequences) == [[1, 2], [1, 2, 3, 4, 5]]


def test_calls_of_different_rollouts_are_never_merged() -> None:
    trained = [weighted("a", [1, 2], [3]), weighted("b", [1, 2, 3], [4])]

    assert len(merged(trained, [1.0] * 2)) == 2


def test_a_prompt_that_differs_in_one_token_is_not_an_extension() -> None:
    trained = [weighted("a", [1, 2], [3]), weighted("a", [1, 2, 9, 4], [5])]

    assert len(merged(trained, [1.0] * 2)) == 2


def test_token_weights_are_equal_and_sum_to_one() -> None:
    trained = [weighted("a", [1], [2, 3]), weighted("a", [1], [2, 3, 4]), weighted("b", [1], [2, 3, 4, 5, 6])]

    assert step_weights(trained, "token") == pytest.approx([0.1, 0.1, 0.1])


def test_rollout_weights_give_each_rollout_the_same_share() -> None:
    trained = [weighted("a", [1], [2, 3]), weighted("a", [1], [2, 3, 4]), weighted("b", [1], [2] * 10)]

    assert step_weights(trained, "rollout") == pytest.approx([0.1, 0.1, 0.05])
