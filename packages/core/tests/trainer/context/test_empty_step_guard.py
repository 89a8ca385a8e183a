"""Steps of an external loop that learned nothing are logged, and many in a row end the run."""

import pytest

from leyden.core.algorithm.external_loop import TaskRequest, TaskUsage
from leyden.core.errors import NothingToLearn
from leyden.core.trainer.context.external_loop import MOST_EMPTY, EmptyStepGuard

ASKED = TaskRequest(step=1, place=0, row=0, copies=2)
NO_SPREAD = [TaskUsage(asked=ASKED, calls=0, tokens=0, group_dropped="no spread")] * 2
ONE_CALL = [*NO_SPREAD, TaskUsage(asked=ASKED, calls=1, tokens=3)]


def test_a_step_that_taught_nothing_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    guard = EmptyStepGuard()
    guard.note(1, ONE_CALL, is_last=False)
    assert not caplog.messages
    guard.note(2, [*NO_SPREAD, TaskUsage(asked=ASKED, calls=0, tokens=0)], is_last=False)
    assert caplog.messages == ["step 2 had nothing to learn from (2 × no spread, 1 × no call left)"]


def test_many_in_a_row_end_the_run() -> None:
    guard = EmptyStepGuard()
    for step in range(1, MOST_EMPTY):
        guard.note(step, NO_SPREAD, is_last=False)
    with pytest.raises(
        NothingToLearn,
        match=(f"{MOST_EMPTY} steps in a row had nothing to learn from; tasks of the last one: 2 × no spread"),
    ):
        guard.note(MOST_EMPTY, NO_SPREAD, is_last=False)


def test_a_step_that_teaches_begins_the_count_again_and_the_last_step_ends_a_run_well() -> None:
    guard = EmptyStepGuard()
    for step in range(1, MOST_EMPTY):
        guard.note(step, NO_SPREAD, is_last=False)
    guard.note(MOST_EMPTY, ONE_CALL, is_last=False)
    for step in range(1, MOST_EMPTY):
        guard.note(MOST_EMPTY + step, NO_SPREAD, is_last=False)
    guard.note(2 * MOST_EMPTY, NO_SPREAD, is_last=True)
