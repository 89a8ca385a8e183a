"""Admission: who waits for whom, by a clock that the test turns."""

import pytest

from leyden.core.engine.embedded.admission import Admission

IDLE, LONGEST = 0.003, 0.04


@pytest.fixture
def admission() -> Admission:
    return Admission(idle=IDLE, longest=LONGEST)


def come(admission: Admission, times: list[float], already: int = 0) -> None:
    for n, now in enumerate(times, already + 1):
        admission.arrived(now, n)


def remaining_wait(admission: Admission, now: float, waiting: int, *, room: int = 64, idle: bool = True) -> float:
    return admission.remaining_wait(now, waiting=waiting, room=room, idle=idle)


def test_a_caller_who_is_always_alone_waits_only_for_an_idle_engines_moment(admission: Admission) -> None:
    for now in (0.0, 1.0, 2.0):
        come(admission, [now])
        assert remaining_wait(admission, now, 1) == pytest.approx(IDLE)
        assert remaining_wait(admission, now + IDLE, 1) == 0
        admission.began()


def test_a_call_joins_at_once_those_that_are_decoded_where_no_further_one_is_expected(admission: Admission) -> None:
    come(admission, [0.0])
    assert remaining_wait(admission, 0.0, 1, idle=False) == 0


def test_calls_wait_for_as_many_as_lately_came_at_once_and_never_longer_than_the_limit(admission: Admission) -> None:
    come(admission, [0.0] * 40)
    admission.began()
    come(admission, [1.0, 1.01], already=30)
    assert remaining_wait(admission, 1.01, 2) == pytest.approx(LONGEST - 0.01)
    assert remaining_wait(admission, 1.01, 2, idle=False) == pytest.approx(LONGEST - 0.01)
    assert remaining_wait(admission, 1.0 + LONGEST, 2) == 0
    assert remaining_wait(admission, 1.005, 39, idle=False) == 0


def test_nobody_waits_for_more_than_there_is_room_for(admission: Admission) -> None:
    come(admission, [0.0] * 40)
    assert remaining_wait(admission, 0.0, 2, room=2) == 0


def test_those_who_found_no_room_have_waited(admission: Admission) -> None:
    come(admission, [0.0] * 40)
    admission.began()
    assert remaining_wait(admission, 0.0, 8) == 0


def test_a_crowd_that_has_gone_is_soon_not_expected_any_more(admission: Admission) -> None:
    come(admission, [0.0] * 24)
    admission.began()
    waits: list[float] = []
    for now in range(1, 20):
        come(admission, [float(now)])
        waits.append(remaining_wait(admission, float(now), 1))
        admission.began()
    assert waits[0] == pytest.approx(LONGEST)
    assert waits[-1] == pytest.approx(IDLE)
