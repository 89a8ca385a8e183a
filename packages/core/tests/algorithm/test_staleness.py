"""The bounds on how far collecting runs ahead: held whatever finishes when, and as wide as they can be."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.algorithm.lightning_rl import LightningRLConfig
from leyden.core.algorithm.staleness import DEFAULT_STALENESS, StalenessWindow, restore_window, staleness, window_state
from leyden.core.data.transition import Transition
from leyden.core.errors import UsageError
from leyden.core.testing.factories import transition


def call(*versions: tuple[int, int]) -> Transition:
    tokens = [0] * sum(count for _, count in versions)
    return transition(response=tokens, version=versions[0][0], versions=versions)


# --- What a user may ask for


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"loop": "asynchronous"}, "loop must be one of sync, one_off, async"),
        ({"max_staleness": 2}, "max_staleness has no effect on loop sync"),
        ({"loop": "one_off", "max_staleness": 2}, "max_staleness has no effect on loop one_off"),
        (
            {"loop": "async", "max_staleness": 0},
            "at least 1, got 0; to learn only from tokens of the current weights, set loop=sync",
        ),
        ({"loop": "async", "loss": "reinforce"}, "a loss without ratios"),
        ({"loop": "one_off", "loss": "rejection"}, "a loss without ratios"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        LightningRLConfig(**config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({}, 0),
        ({"loss": "reinforce"}, 0),
        ({"loop": "one_off"}, 1),
        ({"loop": "async"}, DEFAULT_STALENESS),
        ({"loop": "async", "max_staleness": 1}, 1),
        ({"loop": "async", "loss": "reinforce", "correction": "truncated"}, DEFAULT_STALENESS),
    ],
)
def test_every_loop_has_a_bound(config: dict[str, Any], bound: int) -> None:
    assert LightningRLConfig(**config).pace().max_staleness == bound


# --- The window, with groups that finish in any order


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8))
def test_no_group_gets_older_than_the_bound_and_each_is_taken_once(
    data: st.DataObject, size: int, bound: int, steps: int
) -> None:
    """Groups finish in any order, and a batch may teach nothing, which ends a turn without a new version."""
    window = StalenessWindow(size=size, max_staleness=bound)
    version, began, running, finished, taken = 0, dict[int, int](), list[int](), list[int](), list[int]()

    def begin_some() -> None:
        while window.may_begin(steps - version) and data.draw(st.booleans(), "begin another"):
            number = window.begin()
            began[number] = version
            running.append(number)

    while version < steps:
        begin_some()
        while (batch := window.choose(finished)) is None:
            if not running:
                assert len(finished) < size, "all have finished: they must make a batch"
                assert window.may_begin(steps - version), "nothing is in flight, and nothing may begin"
                number = window.begin()
                began[number] = version
                running.append(number)
            finished.append(running.pop(data.draw(st.integers(0, len(running) - 1), "finishes")))
        assert len(batch) == size
        assert all(version - began[number] <= bound for number in batch)
        window.take(batch)
        taken.extend(batch)
        finished = [number for number in finished if number not in batch]
        begin_some()
        version += data.draw(st.booleans(), "teaches something") or len(taken) > 6 * size * steps
        window.end_turn()
    assert len(set(taken)) == len(taken)
    assert len(began) == len(taken), "at the end of a run nothing is in flight in vain"


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_a_batch_is_refused_only_where_the_bound_could_not_be_held_any_more(
    data: st.DataObject, size: int, bound: int
) -> None:
    """Against all ways to take every group, `size` a turn, each in its time."""
    window = StalenessWindow(size=size, max_staleness=bound)
    for _ in range(data.draw(st.integers(0, 2), "turns before")):
        while window.may_begin(9):
            window.begin()
        window.take(sorted(window.due)[:size])
        window.end_turn()
    while window.may_begin(9) and (len(window.due) < size or data.draw(st.booleans(), "begin another")):
        window.begin()
    finished = [number for number in window.due if data.draw(st.booleans(), "has finished")]
    possible = [
        batch
        for batch in combinations(finished, size)
        if can_be_taken({n: due for n, due in window.due.items() if n not in batch}, size, window.turn + 1)
    ]
    chosen = window.choose(finished)
    assert (chosen is None) == (not possible)
    assert chosen is None or tuple(sorted(chosen)) in possible


def can_be_taken(due: dict[int, int], size: int, turn: int) -> bool:
    """Whether all can be taken in time from `turn` on, by trying every choice for each turn."""
    if not due:
        return True
    if min(due.values()) < turn:
        return False
    return any(
        can_be_taken({n: d for n, d in due.items() if n not in batch}, size, turn + 1)
        for batch in combinations(due, min(size, len(due)))
    )


def test_one_that_lags_is_overtaken_until_its_time_has_come() -> None:
    window = StalenessWindow(size=1, max_staleness=2)
    slow = window.begin()
    for overtaking in range(2):
        quick = window.begin()
        assert window.choose([quick]) == [quick], overtaking
        window.take([quick])
        window.end_turn()
    late = window.begin()
    assert window.choose([late]) is None
    assert window.choose([late, slow]) == [slow]


def test_what_is_learned_from_counts_until_its_weights_are_served() -> None:
    window = StalenessWindow(size=2, max_staleness=1)
    first = [window.begin() for _ in range(4)]
    assert not window.may_begin(9)
    window.take(first[:2])
    assert not window.may_begin(9), "these would be drawn by weights two versions older than those that learn"
    window.end_turn()
    assert window.may_begin(9)


def test_a_window_goes_on_as_it_was_left() -> None:
    window = StalenessWindow(size=1, max_staleness=2)
    first, _ = window.begin(), window.begin()
    window.take([first])
    window.end_turn()
    again = StalenessWindow(size=1, max_staleness=2)
    restore_window(again, window_state(window))
    assert again == window


# --- How old what was learned from is


def test_staleness_is_counted_over_tokens() -> None:
    found = staleness([call((3, 2), (4, 1)), call((5, 3))], 5)
    assert found == {"staleness_mean": (2 + 2 + 1) / 6, "staleness_max": 2.0, "mixed_version_share": 0.5}


def test_fresh_tokens_have_no_age() -> None:
    found = staleness([call((7, 4)), call((7, 1))], 7)
    assert found == {"staleness_mean": 0.0, "staleness_max": 0.0, "mixed_version_share": 0.0}
