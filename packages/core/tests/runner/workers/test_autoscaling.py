"""The rule of autoscaling, with a clock of the test."""

import asyncio
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.errors import LeydenError
from leyden.core.runner.workers import autoscaling
from leyden.core.runner.workers.autoscaling import Autoscaler, Load, ScalingRule, follow, share

RULE = ScalingRule(least=1, most=8, out_after=10.0, in_after=60.0)


def load(queued: int, running: int, workers: int, concurrency: int = 4) -> Load:
    return Load(queued=queued, running=running, workers=workers, concurrency=concurrency)


@pytest.mark.parametrize(
    ("given_load", "needed"),
    [
        (load(0, 0, 1), 1),
        (load(0, 4, 1), 1),  # full, but nothing waits
        (load(1, 4, 1), 2),
        (load(4, 4, 1), 2),
        (load(5, 4, 1), 3),
        (load(1000, 4, 1), 8),
        (load(2, 2, 1), 1),  # there is room for what waits: it is about to be claimed
        (load(0, 20, 2), 2),  # 12 of them run in workers that are being drained
        (load(3, 20, 2), 6),
        (load(0, 3, 4), 1),
        (load(0, 0, 4), 1),
        (load(0, 9, 4), 3),
        (load(5, 0, 0), 2),  # no worker has come yet
    ],
)
def test_as_many_workers_are_needed_as_could_run_everything_at_once(given_load: Load, needed: int) -> None:
    assert RULE.needed(given_load) == needed


def looked(autoscaler: Autoscaler, loads: dict[float, Load]) -> list[int]:
    return [autoscaler.look(each, now) for now, each in loads.items()]


def test_workers_are_added_once_rollouts_have_waited_for_the_whole_window() -> None:
    full = load(4, 4, 1)
    assert looked(Autoscaler(RULE), {0: full, 5: full, 9: full, 10: full}) == [1, 1, 1, 2]


def test_a_queue_that_empties_meanwhile_adds_none() -> None:
    full, free = load(4, 4, 1), load(0, 2, 1)
    assert looked(Autoscaler(RULE), {0: full, 5: free, 11: full, 16: full, 21: full}) == [1, 1, 1, 1, 2]


def test_the_number_rises_to_what_was_needed_all_the_time() -> None:
    assert looked(Autoscaler(RULE), {0: load(20, 4, 1), 5: load(8, 4, 1), 10: load(40, 4, 1)}) == [1, 1, 3]


def test_workers_are_drained_once_fewer_have_sufficed_for_the_whole_window() -> None:
    autoscaler = Autoscaler(RULE)
    looked(autoscaler, {0: load(12, 4, 1), 10: load(12, 4, 1)})
    assert autoscaler.wanted == 4
    idle = load(0, 0, 4)
    assert looked(autoscaler, {20: idle, 69: idle, 70: idle, 79: idle, 80: idle}) == [4, 4, 4, 4, 1]


def test_the_pause_between_two_steps_of_a_run_drains_none() -> None:
    autoscaler = Autoscaler(RULE)
    looked(autoscaler, {0: load(12, 4, 1), 10: load(12, 4, 1)})
    wanted = [
        autoscaler.look(load(0, 16, 4) if second % 50 < 10 else load(0, 0, 4), 10 + second) for second in range(500)
    ]
    assert set(wanted) == {4}


def test_it_falls_only_to_the_most_that_was_needed_in_the_window() -> None:
    autoscaler = Autoscaler(RULE)
    looked(autoscaler, {0: load(28, 4, 1), 10: load(28, 4, 1)})
    assert autoscaler.wanted == 8
    assert looked(autoscaler, {11: load(0, 10, 8), 40: load(0, 1, 8), 71: load(0, 1, 8)}) == [8, 8, 3]


LOADS = st.builds(load, queued=st.integers(0, 60), running=st.integers(0, 60), workers=st.integers(0, 10))


@given(st.lists(st.tuples(st.floats(0.1, 20.0), LOADS), min_size=1, max_size=60))
def test_the_number_stays_in_its_bounds_and_never_moves_back_within_a_window(steps: list[tuple[float, Load]]) -> None:
    autoscaler, now = Autoscaler(RULE), 0.0
    changes: list[tuple[float, int]] = [(0.0, autoscaler.wanted)]
    for pause, each in steps:
        now += pause
        wanted = autoscaler.look(each, now)
        assert RULE.least <= wanted <= RULE.most
        if wanted != changes[-1][1]:
            changes.append((now, wanted))
    for (_, before), (risen, high), (fallen, low) in zip(changes, changes[1:], changes[2:], strict=False):
        if before < high > low:
            assert fallen - risen >= RULE.in_after - RULE.out_after
    for (_, before), (_, after) in pairwise(changes):
        assert before != after


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 100))
def test_pools_that_take_their_share_have_what_is_wanted_but_for_rounding(sizes: list[int], wanted: int) -> None:
    together = sum(share(wanted, sum(sizes), size) for size in sizes)
    assert wanted <= together < wanted + len(sizes)


def test_a_machine_whose_workers_are_not_heard_from_yet_counts_them_itself() -> None:
    assert share(wanted=6, present=0, own=2) == 6


class ListedPool:
    """A pool that records its sizes, and fails to reach those in `fails`."""

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        self.size, self.fails, self.asked = 1, fails, list[int]()

    async def resize(self, size: int) -> None:
        self.asked.append(size)
        if size in self.fails:
            raise LeydenError("there is no room")
        self.size = size


async def test_a_pool_follows_what_is_wanted_and_survives_a_worker_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autoscaling, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(autoscaling, "RETRY_SECONDS", 0.0)
    wanted, done = [1, 3, 5, 2], asyncio.Event()

    async def next_wanted(size: int) -> int:
        if not wanted:
            done.set()
            await asyncio.sleep(60)
        return wanted.pop(0)

    pool = ListedPool(fails=(5,))
    with caplog.at_level(logging.INFO):
        following = asyncio.create_task(follow(pool, next_wanted))
        await asyncio.wait_for(done.wait(), 10)
        following.cancel()
    assert (pool.asked, pool.size) == ([3, 5, 2], 2)
    assert [record.message for record in caplog.records] == [
        "the number of workers has changed from 1 to 3",
        "the number of workers stays 3 instead of 5: there is no room",
        "the number of workers has changed from 3 to 2",
    ]
