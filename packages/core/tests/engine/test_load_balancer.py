import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.engine import load_balancer
from leyden.core.engine.load_balancer import BOUND, Load, LoadBalancer
from leyden.core.testing.engine_contract import until

NAMES = ["http://a", "http://b", "http://c"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_balancer, "FIRST_PROBE", 0.01)


async def failing(_: str) -> bool:
    return False


def test_processes_choose_the_same_replica_and_a_rollout_stays_there() -> None:
    here, there = LoadBalancer(NAMES), LoadBalancer(NAMES[::-1])
    chosen = {f"rollout {n}": here.choose(f"rollout {n}") for n in range(300)}
    assert {rollout: there.choose(rollout) for rollout in chosen} == chosen
    assert all(count > 60 for count in Counter(chosen.values()).values())
    with here.carry(NAMES[0], 1000), here.carry(NAMES[1], 1000):
        assert {rollout: here.choose(rollout) for rollout in chosen} == chosen


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_no_replica_gets_a_rollout_above_the_bound(sizes: list[int]) -> None:
    balancer = LoadBalancer(NAMES)
    carried: list[Load] = []
    for number, size in enumerate(sizes):
        name = balancer.choose(f"rollout {number}")
        assert name is not None
        average = sum(balancer.loads.values()) / len(NAMES)
        assert balancer.loads[name] <= max(BOUND * average, min(balancer.loads.values()))
        carried.append(balancer.carry(name, size))
    for load in carried:
        with load:
            load.add(7)
    assert set(balancer.loads.values()) == {0}


async def test_a_replica_that_failed_is_left_until_a_probe_succeeds() -> None:
    answers = False

    async def probe(_: str) -> bool:
        return answers

    balancer = LoadBalancer(NAMES[:2], probe=probe)
    first = balancer.choose("rollout")
    assert first is not None
    balancer.leave(first, "it broke")
    assert balancer.choose("rollout") != first
    await asyncio.sleep(0.05)
    assert balancer.left == {first}
    answers = True
    await until(lambda: not balancer.left)
    assert balancer.choose("rollout") != first, "it stays where it went"
    await balancer.close()


async def test_if_all_failed_they_are_tried_each_once() -> None:
    balancer = LoadBalancer(NAMES, probe=failing)
    for name in NAMES:
        balancer.leave(name, "it broke")
    tried: list[str] = []
    while (name := balancer.choose("rollout", tried)) is not None:
        tried.append(name)
    assert sorted(tried) == NAMES
    balancer.restore(NAMES[1])
    assert balancer.choose("rollout") == NAMES[1]
    balancer.remove(NAMES[0])
    assert balancer.left == {NAMES[2]}
    await balancer.close()


async def test_a_single_replica_is_never_left() -> None:
    balancer = LoadBalancer(NAMES[:1], probe=failing)
    balancer.leave(NAMES[0], "it broke")
    assert not balancer.left
