import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leyden.core.errors import UsageError
from leyden.core.gateway.limits.admission import AdmissionControl, AdmissionLimits
from leyden.core.gateway.refusal import Refusal


class Calls:
    """Calls through admission control, each held until it is told to end."""

    def __init__(self, admission: AdmissionControl) -> None:
        self.admission = admission
        self.arrived: list[str] = []
        self.entered: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def start(self, name: str, attempt: str | None = None) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name, attempt or name))

    def end(self, name: str) -> None:
        self._ends[name].set()

    async def _call(self, name: str, attempt: str) -> None:
        self.arrived.append(name)
        with await self.admission.acquire(attempt):
            self.entered.append(name)
            await self._ends[name].wait()


async def settle(calls: int = 1) -> None:
    """Let everything happen that can without time passing, where a slot may go through so many calls' hands."""
    for _ in range(8 * calls):
        await asyncio.sleep(0)


async def refusal_of(task: "asyncio.Task[None]") -> Refusal:
    with pytest.raises(Refusal) as error:
        await task
    return error.value


async def started(limits: AdmissionLimits, *names: str, clock: Callable[[], float] | None = None) -> Calls:
    calls = Calls(AdmissionControl(limits, clock) if clock else AdmissionControl(limits))
    for name in names:
        calls.start(name, name.rstrip("0123456789"))
    await settle()
    return calls


async def finish(calls: Calls) -> None:
    for name in calls.tasks:
        calls.end(name)
    await asyncio.gather(*calls.tasks.values(), return_exceptions=True)
    assert (calls.admission.running, calls.admission.waiting) == (0, 0)


async def test_so_many_have_a_place_and_the_rest_wait_in_order() -> None:
    calls = await started(AdmissionLimits(max_concurrent=2), "a", "b", "c", "d")
    assert (calls.entered, calls.admission.running, calls.admission.waiting) == (["a", "b"], 2, 2)
    calls.end("b")
    await settle()
    assert calls.entered == ["a", "b", "c"]
    calls.start("e")
    await settle()
    await finish(calls)
    assert calls.entered == ["a", "b", "c", "d", "e"]


async def test_one_attempt_cannot_starve_another() -> None:
    crowd = [f"crowd{n}" for n in range(1000)]
    calls = await started(AdmissionLimits(max_concurrent=4, max_per_attempt=2), *crowd, "quiet")
    assert calls.entered == ["crowd0", "crowd1", "quiet"]
    calls.end("crowd1")
    calls.start("third")
    await settle()
    assert sorted(calls.entered[3:]) == ["crowd2", "third"]
    await finish(calls)
    assert [name for name in calls.entered if name in crowd] == crowd


async def test_a_crowd_delays_the_next_call_of_another_by_its_share_at_most() -> None:
    crowd = [f"crowd{n}" for n in range(50)]
    calls = await started(AdmissionLimits(max_concurrent=2, max_per_attempt=3), *crowd, "quiet")
    for name in ("crowd0", "crowd1", "crowd2"):
        calls.end(name)
        await settle()
    assert calls.entered.index("quiet") == 3
    await finish(calls)


async def test_more_than_may_wait_are_refused_and_told_when_to_come_back() -> None:
    calls = await started(AdmissionLimits(max_concurrent=1, max_waiting=1), "a", "b", "c")
    refusal = await refusal_of(calls.tasks["c"])
    assert (refusal.status, refusal.body.code, refusal.headers) == (429, "too_many_waiting", {"retry-after": "1"})
    calls.end("a")
    await settle()
    assert calls.entered == ["a", "b"]
    await finish(calls)


async def test_the_advice_grows_with_the_line() -> None:
    now = 0.0
    calls = await started(AdmissionLimits(max_concurrent=1, max_waiting=3), "a", clock=lambda: now)
    now = 160.0
    calls.end("a")
    for name in "bcdef":
        calls.start(name)
    await settle()
    refusal = await refusal_of(calls.tasks["f"])
    assert refusal.headers == {"retry-after": "30"}  # three wait, a slot is held for 160 / 16 seconds
    await finish(calls)


async def test_calls_beyond_the_rate_are_refused_until_there_is_one_again() -> None:
    now = 0.0
    limits = AdmissionLimits(rate=0.25, burst=2)
    calls = await started(limits, "a", "b", "c", clock=lambda: now)
    refusal = await refusal_of(calls.tasks["c"])
    assert (refusal.status, refusal.body.code, refusal.headers) == (429, "rate_limit_exceeded", {"retry-after": "4"})
    now = 3.5
    calls.start("d")
    assert (await refusal_of(calls.tasks["d"])).headers == {"retry-after": "1"}
    now = 4.0
    calls.start("e")
    await settle()
    now = 1000.0
    for name in ("f", "g", "h"):
        calls.start(name)
    await settle()
    assert calls.entered == ["a", "b", "e", "f", "g"]
    await finish(calls)


async def test_a_call_that_waits_too_long_is_refused_and_leaves_the_line() -> None:
    calls = await started(AdmissionLimits(max_concurrent=1, max_wait_seconds=0.01), "a", "b")
    refusal = await refusal_of(calls.tasks["b"])
    assert (refusal.status, refusal.headers) == (503, {"retry-after": "1"})
    assert calls.admission.waiting == 0
    await finish(calls)
    assert calls.entered == ["a"]


async def test_calls_that_come_while_it_is_paused_are_answered_after() -> None:
    calls = await started(AdmissionLimits(max_concurrent=2), "a")
    calls.admission.pause()
    calls.start("b")
    drained = asyncio.create_task(calls.admission.drain())
    await settle()
    assert (calls.entered, calls.admission.paused, drained.done()) == (["a"], True, False)
    calls.end("a")
    await settle()
    assert (calls.entered, drained.done()) == (["a"], True)
    calls.admission.resume()
    await settle()
    assert (calls.entered, calls.admission.paused) == (["a", "b"], False)
    await finish(calls)


async def test_a_block_without_calls_ends_its_pause_however_it_ends() -> None:
    calls = await started(AdmissionLimits(), "a")

    async def update() -> None:
        async with calls.admission.closed():
            assert calls.admission.running == 0
            calls.start("b")
            await settle()
            raise OSError("no weights")

    updating = asyncio.create_task(update())
    await settle()
    calls.end("a")
    with pytest.raises(OSError, match="no weights"):
        await updating
    await settle()
    assert calls.entered == ["a", "b"]
    given_up = asyncio.create_task(update())
    await settle()
    given_up.cancel()
    await asyncio.wait([given_up])
    assert not calls.admission.paused
    await finish(calls)


async def test_draining_what_is_empty_takes_no_time() -> None:
    await AdmissionControl().drain()


async def test_a_place_is_given_back_when_the_call_fails() -> None:
    admission = AdmissionControl(AdmissionLimits(max_concurrent=1))
    for _ in range(3):
        with pytest.raises(OSError, match="engine"), await admission.acquire("a"):
            raise OSError("engine")
    assert admission.running == 0


async def test_a_call_that_is_given_its_place_and_cancelled_at_once_passes_it_on() -> None:
    calls = await started(AdmissionLimits(max_concurrent=1), "a", "b", "c")
    calls.end("a")
    while not calls.tasks["a"].done():
        await asyncio.sleep(0)
    assert (calls.entered, calls.admission.waiting) == (["a"], 1)  # b has its place and does not know yet
    calls.tasks["b"].cancel()
    await settle()
    assert calls.entered == ["a", "c"]
    await finish(calls)


def test_a_thousand_agents_with_four_calls_each_wait_by_default() -> None:
    limits = AdmissionLimits()
    assert limits.max_concurrent + limits.max_waiting >= 4000
    assert limits.rate is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_concurrent": 0},
        {"max_per_attempt": 0},
        {"max_waiting": -1},
        {"max_waiting_per_attempt": -1},
        {"fair_share": 0},
        {"max_wait_seconds": 0},
        {"rate": 0.0},
        {"burst": 0},
    ],
)
def test_limits_that_let_nothing_through_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        AdmissionLimits(**wrong)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "end", "end", "cancel", "pause", "resume", "settle"]),
        st.integers(0, 40),
    ),
    max_size=60,
)


class Campaign:
    """Random calls, checked against what must hold whatever happens."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits, self.admission = limits, AdmissionControl(limits)
        self.calls = Calls(self.admission)
        self._attempts: dict[str, str] = {}
        self._in_line: set[str] = set()
        """Calls that could join the common line when they came."""

    async def take(self, step: str, value: int) -> None:
        if step == "arrive":
            await self._arrive(f"call{len(self._attempts)}", f"attempt{value % 5}")
        elif step == "pause":
            self.admission.pause()
        elif step == "resume":
            self.admission.resume()
        elif step == "settle":
            await self.settle()
            self.check()
        elif names := self._open():
            name = names[value % len(names)]
            self.calls.end(name) if step == "end" else self.calls.tasks[name].cancel()

    async def _arrive(self, name: str, attempt: str) -> None:
        await self.settle()
        self._attempts[name] = attempt
        if sum(self._attempts[other] == attempt for other in self._open()) < self.limits.max_per_attempt:
            self._in_line.add(name)
        self.calls.start(name, attempt)
        await self.settle()

    async def settle(self) -> None:
        """Also where calls have been told to end before they have a place, which they give on at once."""
        await settle(1 + len(self._open()))

    def _open(self) -> list[str]:
        return [name for name, task in self.calls.tasks.items() if not task.done()]

    def check(self) -> None:
        """No limit is passed, and no place is free that somebody could have."""
        holding = [name for name in self.calls.entered if not self.calls.tasks[name].done()]
        held = Counter(self._attempts[name] for name in holding)
        assert self.admission.running == len(holding) <= self.limits.max_concurrent
        assert max(held.values(), default=0) <= self.limits.max_per_attempt
        waiting = [name for name in self._open() if name not in holding]
        assert self.admission.waiting == len(waiting) <= self.limits.max_waiting
        if not self.admission.paused and self.admission.running < self.limits.max_concurrent:
            assert all(held[self._attempts[name]] == self.limits.max_per_attempt for name in waiting)

    def check_order(self) -> None:
        """A call is overtaken by none of its attempt, and by none at all if it could join the line when it came."""
        arrival = {name: place for place, name in enumerate(self.calls.arrived)}
        for place, name in enumerate(self.calls.entered):
            for other in self.calls.entered[place + 1 :]:
                if arrival[other] < arrival[name]:
                    assert other not in self._in_line
                    assert self._attempts[other] != self._attempts[name]


@settings(max_examples=200)
@example(steps=[("arrive", 0)] * 4 + [("arrive", 1), ("arrive", 0)], concurrent=1, each=1, waiting=5)
@given(steps=STEPS, concurrent=st.integers(1, 4), each=st.integers(1, 3), waiting=st.integers(0, 8))
async def test_no_place_is_lost_and_none_is_given_out_of_turn(
    steps: list[tuple[str, int]], concurrent: int, each: int, waiting: int
) -> None:
    campaign = Campaign(AdmissionLimits(max_concurrent=concurrent, max_per_attempt=each, max_waiting=waiting))
    for step, value in steps:
        await campaign.take(step, value)
    campaign.admission.resume()
    for name in campaign.calls.tasks:
        await campaign.settle()
        campaign.check()
        campaign.calls.end(name)
    await finish(campaign.calls)
    campaign.check_order()
    fresh = Calls(campaign.admission)
    for number in range(concurrent):
        fresh.start(f"fresh{number}")
    await settle()
    assert len(fresh.entered) == concurrent
    await finish(fresh)


async def test_short_calls_of_one_attempt_do_not_all_come_before_that_of_another() -> None:
    admission, order = AdmissionControl(), list[str]()

    async def call(attempt_id: str) -> None:
        with await admission.acquire(attempt_id):
            order.append(attempt_id)  # all of a short call, without a pause

    await asyncio.gather(call("a"), call("b"))
    order.clear()
    await asyncio.gather(*(call("a") for _ in range(20)), call("b"))
    assert order.index("b") <= 2
    assert order.count("a") == 20
