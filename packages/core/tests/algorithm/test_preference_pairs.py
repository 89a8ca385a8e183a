"""Pairs of answers to one state: invariants over random groups, and the best pairing by trying them all."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.algorithm.preference_pairs import Answer, Pair, by_state, pairs_of, pairs_of_state
from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.reasons import NO_BETTER_ANSWER, NO_STATE_TWICE, TOO_FEW_REWARDS
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.testing.factories import trajectory, transition


def call(rollout: str, prompt: Sequence[int], response: Sequence[int], place: int = 0) -> Transition:
    return transition(prompt, response, rollout_id=rollout, span_id=f"s{place}")


def rollout(name: str, reward: float | None, *calls: tuple[Sequence[int], Sequence[int]]) -> Trajectory:
    made = (call(name, prompt, response, place) for place, (prompt, response) in enumerate(calls))
    return trajectory(reward, made, rollout_id=name)


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(task_id="t", trajectories=trajectories)


def key(pair: Pair) -> tuple[bytes, bytes, bytes, float]:
    chosen, rejected = pair.chosen, pair.rejected
    return (chosen.prompt_ids.tobytes(), chosen.response_ids.tobytes(), rejected.response_ids.tobytes(), pair.gap)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=2)
CALLS = st.lists(st.tuples(TOKENS, TOKENS), max_size=3)
GROUPS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.none(), CALLS), max_size=7)
"""Short prompts and responses over two tokens, so that states and answers meet again."""


@given(GROUPS, st.sampled_from([0.0, 0.3]), st.none() | st.just(1))
def test_a_pair_is_two_answers_to_one_state_and_no_answer_is_in_two(
    members: list[tuple[float | None, list[tuple[list[int], list[int]]]]], min_gap: float, per_state: int | None
) -> None:
    whole = group(*(rollout(f"r{n}", reward, *calls) for n, (reward, calls) in enumerate(members)))
    found = pairs_of([whole], UniformCredit(), min_gap=min_gap, per_state=per_state)
    used: set[tuple[bytes, bytes]] = set()
    states: list[bytes] = []
    for pair in found.pairs:
        assert pair.chosen.prompt_ids == pair.rejected.prompt_ids
        assert pair.gap > min_gap
        for one in (pair.chosen, pair.rejected):
            answer = (one.prompt_ids.tobytes(), one.response_ids.tobytes())
            assert answer not in used
            used.add(answer)
        states.append(pair.chosen.prompt_ids.tobytes())
    assert per_state is None or len(set(states)) == len(states)
    assert sum(found.dropped.values()) == (0 if found.pairs else 1)


@given(GROUPS, st.randoms(use_true_random=False))
def test_pairs_do_not_depend_on_the_order_of_rollouts(
    members: list[tuple[float | None, list[tuple[list[int], list[int]]]]], random: Any
) -> None:
    trajectories = [rollout(f"r{n}", reward, *calls) for n, (reward, calls) in enumerate(members)]
    shuffled = list(trajectories)
    random.shuffle(shuffled)
    found, again = (pairs_of([group(*given_)], UniformCredit()) for given_ in (trajectories, shuffled))
    assert sorted(map(key, found.pairs)) == sorted(map(key, again.pairs))
    assert found.dropped == again.dropped


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0]), max_size=6))
def test_no_other_pairing_has_larger_gaps_in_sum(values: list[float]) -> None:
    answers = [Answer(call(f"r{n}", [1], [n]), value) for n, value in enumerate(values)]
    ranked = by_state(answers)[0] if answers else []
    total = sum(pair.gap for pair in pairs_of_state(ranked))
    best = max(sum(abs(a - b) for a, b in zip(order[::2], order[1::2], strict=False)) for order in permutations(values))
    assert total == pytest.approx(best)


def test_the_best_meets_the_worst() -> None:
    found = pairs_of([group(*(rollout(f"r{n}", n / 4, ([1], [n])) for n in range(5)))], UniformCredit()).pairs
    assert [(list(pair.chosen.response_ids), list(pair.rejected.response_ids)) for pair in found] == [
        ([4], [0]),
        ([3], [1]),
    ]
    assert [pair.gap for pair in found] == [1.0, 0.5]


def test_the_same_tokens_are_one_answer_with_the_mean_of_its_returns() -> None:
    lucky = group(rollout("a", 1.0, ([1], [2])), rollout("b", 0.0, ([1], [2])), rollout("c", 0.75, ([1], [3])))
    (pair,) = pairs_of([lucky], UniformCredit()).pairs
    assert (list(pair.chosen.response_ids), pair.gap) == ([3], 0.25)


def test_a_group_without_a_pair_is_counted_by_the_reason_why() -> None:
    found = pairs_of(
        [
            group(rollout("a", 1.0, ([1], [2])), rollout("b", None, ([1], [3]))),
            group(rollout("a", 1.0, ([1], [2])), rollout("b", 0.0)),
            group(rollout("a", 1.0, ([1], [2])), rollout("b", 0.0, ([9], [3]))),
            group(rollout("a", 1.0, ([1], [2])), rollout("b", 0.0, ([1], [2]))),
            group(rollout("a", 1.0, ([1], [2])), rollout("b", 1.0, ([1], [3]))),
        ],
        UniformCredit(),
    )
    assert found.pairs == []
    assert found.dropped == {TOO_FEW_REWARDS: 2, NO_STATE_TWICE: 2, NO_BETTER_ANSWER: 1}


def test_states_of_different_tasks_do_not_meet() -> None:
    one, other = group(rollout("a", 1.0, ([1], [2]))), group(rollout("b", 0.0, ([1], [3])))
    assert pairs_of([one, other], UniformCredit()).dropped == {TOO_FEW_REWARDS: 2}


@dataclass(frozen=True, kw_only=True)
class LastOnly(CreditAssigner):
    """Only the last call counts, with the reward."""

    def assign(self, trajectory: Trajectory) -> Credit | None:
        count = len(trajectory.transitions)
        return Credit.of([trajectory.reward or 0.0] * count, [0.0] * (count - 1) + [1.0])


def test_a_call_that_is_given_no_weight_makes_no_pair() -> None:
    both = group(rollout("a", 1.0, ([1], [2]), ([5], [6])), rollout("b", 0.0, ([1], [3]), ([5], [7])))
    assert len(pairs_of([both], UniformCredit()).pairs) == 2
    (pair,) = pairs_of([both], LastOnly()).pairs
    assert list(pair.chosen.prompt_ids) == [5]
