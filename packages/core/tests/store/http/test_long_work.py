"""Large work of many senders is done in turn, and who had long work pauses while others send."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from leyden.core.store.http.long_work import ACTIVE_SECONDS, CREDIT, LONGEST_PAUSE, PAUSES, FairScheduler
from leyden.core.store.http.refused import Refused

PATIENCE_SECONDS = 150.0


class Work:
    """Pieces of work that are noted in the order in which they are done, the first of them when it may."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun, self.may_end = threading.Event(), threading.Event()

    def piece(self, name: str, *, waits: bool = False) -> Callable[[], str]:
        def work() -> str:
            if waits:
                self.begun.set()
                assert self.may_end.wait(PATIENCE_SECONDS)
            self.done.append(name)
            return threading.current_thread().name

        return work


async def test_agents_take_turns_and_a_trainer_waits_for_none() -> None:
    scheduler, work = FairScheduler(), Work()
    first, second, trainer = scheduler.sender(agent=True), scheduler.sender(agent=True), scheduler.sender(agent=False)
    running = [asyncio.create_task(scheduler.do(first, work.piece("first 1", waits=True)))]
    assert await asyncio.to_thread(work.begun.wait, PATIENCE_SECONDS)
    running += [asyncio.create_task(scheduler.do(first, work.piece(f"first {n}"))) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    running += [asyncio.create_task(scheduler.do(second, work.piece(f"second {n}"))) for n in (1, 2)]
    assert await scheduler.do(trainer, work.piece("trainer")) != threading.current_thread().name
    work.may_end.set()
    await asyncio.gather(*running)
    assert work.done == ["trainer", "first 1", "second 1", "first 2", "second 2", "first 3", "first 4"]


async def test_a_refusal_in_the_work_is_raised() -> None:
    scheduler = FairScheduler()

    def refuse() -> None:
        raise Refused(413, "too large")

    with pytest.raises(Refused, match="too large"):
        await scheduler.do(scheduler.sender(agent=True), refuse)
    assert await scheduler.do(scheduler.sender(agent=True), lambda: 3) == 3


def test_who_had_long_work_pauses_but_for_short_bursts() -> None:
    now = 100.0
    scheduler = FairScheduler(lambda: now)
    agent, trainer = scheduler.sender(agent=True), scheduler.sender(agent=False)
    agent.charge(CREDIT / PAUSES, now)
    assert (agent.pause(now), agent.has_pause_left(now)) == (0.0, True)
    agent.charge(1 / PAUSES, now)
    assert agent.pause(now) == pytest.approx(1.0)
    assert agent.pause(now + 1.0) == pytest.approx(0.0)
    agent.charge(1e6, now)
    assert agent.pause(now) == pytest.approx(LONGEST_PAUSE)
    assert agent.has_pause_left(now + CREDIT + LONGEST_PAUSE + 1) is False
    trainer.charge(1e6, now)
    assert (trainer.pause(now), trainer.has_pause_left(now)) == (0.0, False)


def test_who_sends_beside_a_sender() -> None:
    now = 0.0
    scheduler = FairScheduler(lambda: now)
    one, other = scheduler.sender(agent=True), scheduler.sender(agent=True)
    scheduler.note(one)
    assert not scheduler.others_send(one) and scheduler.others_send(other)
    scheduler.note(other)
    scheduler.note(one)
    scheduler.note(one)
    assert scheduler.others_send(one)
    now += ACTIVE_SECONDS + 0.1
    scheduler.note(one)
    assert not scheduler.others_send(one) and scheduler.others_send(other)
