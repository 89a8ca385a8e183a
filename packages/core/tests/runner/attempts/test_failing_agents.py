import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.failure import failure_of
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.running import (
    error_of,
    finished,
    patient_store,
    rewards_in,
    run_one,
    running,
)
from leyden.core.tracing.context import current_attempt


def one(task: Any, result: Any) -> float:
    return 1.0


async def raises_in_loop(task: Any) -> Any:
    raise ValueError("bad day")


def raises_in_thread(task: Any) -> Any:
    raise ValueError("bad day")


async def exits_in_loop(task: Any) -> Any:
    sys.exit("bad day")


def exits_in_thread(task: Any) -> Any:
    sys.exit("bad day")


def stops_iteration(task: Any) -> Any:
    raise StopIteration("bad day")


async def cancels_itself(task: Any) -> Any:
    raise asyncio.CancelledError("bad day")


async def interrupts(task: Any) -> Any:
    raise KeyboardInterrupt("bad day")


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        (raises_in_loop, "ValueError"),
        (raises_in_thread, "ValueError"),
        (exits_in_loop, "SystemExit"),
        (exits_in_thread, "SystemExit"),
        (stops_iteration, "RuntimeError"),
        (cancels_itself, "CancelledError"),
        (interrupts, "KeyboardInterrupt"),
    ],
)
async def test_whatever_an_agent_raises_is_a_failed_rollout(agent: Any, kind: str) -> None:
    ended, spans = await run_one(agent, reward=one)
    assert (ended.status, ended.attempt.status) == ("failed", "failed")
    assert (error_of(ended)["kind"], error_of(ended)["type"]) == ("agent", kind)
    assert "bad day" in error_of(ended)["message"]
    raised, result = spans
    assert raised.name == semconv.EXCEPTION
    assert "test_failing_agents.py" in str(raised.attributes["exception.stacktrace"])
    assert (result.name, result.status.code, semconv.RESULT in result.attributes) == (semconv.RESULT, "error", False)
    assert rewards_in(spans) == []


async def raises_in_a_task_group(task: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises_in_loop(task))


async def test_the_error_inside_a_group_is_what_the_rollout_failed_with() -> None:
    ended, [raised, result] = await run_one(raises_in_a_task_group, reward=one)
    failure = failure_of(ended.attempt)
    assert failure is not None
    assert failure.text == (
        "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: bad day "
        f"({__file__}, line {raises_in_loop.__code__.co_firstlineno + 1})"
    )
    assert {raised.status.description, result.status.description} == {failure.message}


async def raises_odd_text(task: Any) -> Any:
    raise ValueError("bad \ud800 day")


async def returns_odd_text(task: Any) -> Any:
    return "good \ud800 day"


async def test_odd_text_of_an_agent_is_kept_as_well_as_it_can_be() -> None:
    ended, [raised, result] = await run_one(raises_odd_text, reward=one)
    assert (ended.status, error_of(ended)["message"]) == ("failed", "bad \ufffd day")
    assert {raised.status.description, result.status.description} == {"bad \ufffd day"}
    ended, [result, _] = await run_one(returns_odd_text, reward=one)
    assert (ended.status, result.attributes[semconv.RESULT]) == ("succeeded", "good \ufffd day")


async def hangs_in_loop(task: Any) -> Any:
    await asyncio.sleep(60)


async def ignores_its_cancellation(task: Any) -> Any:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.5)
            return "late"


RELEASE = threading.Event()


def hangs_in_thread(task: Any) -> Any:
    RELEASE.wait(60)


@pytest.mark.parametrize("agent", [hangs_in_loop, hangs_in_thread, ignores_its_cancellation])
async def test_an_agent_that_hangs_is_timed_out_and_its_place_is_free(agent: Any) -> None:
    store = patient_store()
    RELEASE.clear()
    limit = RolloutConfig(timeout_seconds=0.2)
    ids = [(await store.enqueue_rollout(n, config=limit)).rollout_id for n in range(3)]
    try:
        async with running(store, agent, concurrency=1) as runner:
            for ended in await finished(store, ids):
                assert (ended.status, ended.attempt.status) == ("failed", "timeout")
            while runner.finished < 3:
                await asyncio.sleep(0.01)
    finally:
        RELEASE.set()  # and left so: a thread that is late must not wait for it either
    attempt = await store.get_latest_attempt(ids[0])
    assert attempt is not None
    expected = {"kind": "timeout", "type": "TimeoutError", "message": "no result within 0.2 s"}
    assert attempt.metadata["error"] == expected
    (result,) = await store.query_spans(ids[0])
    assert (result.name, result.status.description) == (semconv.RESULT, "no result within 0.2 s")


async def blocks_the_loop(task: Any) -> str:
    for _ in range(3):
        time.sleep(0.4)
        await asyncio.sleep(0)
    return "late"


async def takes_its_time(task: Any) -> str:
    await asyncio.sleep(60)
    return "late"


def blocks_its_thread(task: Any) -> str:
    time.sleep(1.5)
    return "late"


@pytest.mark.parametrize("make_store", [patient_store, MemoryStore])
@pytest.mark.parametrize(
    ("agent", "is_told"), [(blocks_the_loop, True), (takes_its_time, False), (blocks_its_thread, False)]
)
async def test_a_timeout_says_that_agents_blocked_the_event_loop(
    agent: Any, is_told: bool, make_store: Callable[[], MemoryStore]
) -> None:
    store = make_store()
    ids = [(await store.enqueue_rollout(n, config=RolloutConfig(timeout_seconds=0.5))).rollout_id for n in range(2)]
    async with running(store, agent, concurrency=2) as runner:
        while runner.finished < len(ids):  # the store may have marked them before the runner does
            await asyncio.sleep(0.01)
    failures = [failure_of(attempt) for one in ids for attempt in await store.query_attempts(one)]
    assert {failure.kind for failure in failures if failure} == {"timeout"}
    for failure in failures:
        assert failure is not None
        assert ("the worker's event loop was blocked for" in failure.message) == is_told
        assert ("test_failing_agents.py, line" in failure.message) == is_told
        assert ("make it a plain `def`" in failure.message) == is_told


class SlowToClaim(MemoryStore):
    """Its clock goes on by so many seconds whenever something is claimed, and else stands still."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now, self.seconds = time.time(), seconds
        super().__init__(lambda: self.now)

    async def dequeue_many_rollouts(self, **given: Any) -> list[AttemptedRollout]:
        claimed = await super().dequeue_many_rollouts(**given)
        self.now += self.seconds if claimed else 0.0
        return claimed


async def test_a_timeout_that_the_store_finds_first_says_that_agents_blocked_the_event_loop() -> None:
    store = SlowToClaim()

    async def agent(task: Any) -> None:
        assert runner.loop_watch is not None
        while not runner.loop_watch.sees_code:
            time.sleep(0.05)
        time.sleep(0.2)
        store.now += 100.0
        await asyncio.sleep(60)

    rollout = await store.enqueue_rollout("task", config=RolloutConfig(timeout_seconds=4.0))
    async with running(store, agent, heartbeat_seconds=0.05) as runner:
        while runner.finished < 1:
            await asyncio.sleep(0.01)
    (attempt,) = await store.query_attempts(rollout.rollout_id)
    failure = failure_of(attempt)
    assert failure is not None
    assert (attempt.status, failure.kind) == ("timeout", "timeout")
    assert "no result within 4.0 s; meanwhile the worker's event loop was blocked for" in failure.message


async def test_an_agent_does_not_begin_once_the_time_of_its_attempt_is_over() -> None:
    begun: list[Any] = []

    async def agent(task: Any) -> None:
        begun.append(task)

    store = SlowToClaim(60.0)
    async with running(store, agent, concurrency=2, heartbeat_seconds=600.0) as runner:
        await asyncio.sleep(0.2)  # the first heartbeat, which would give up what is late, finds nothing
        late = await store.enqueue_rollout("late", config=RolloutConfig(timeout_seconds=30.0))
        in_time = await store.enqueue_rollout("in time", config=RolloutConfig(timeout_seconds=90.0))
        first, second = await finished(store, [late.rollout_id, in_time.rollout_id])
        while runner.finished < 2:
            await asyncio.sleep(0.01)
    assert {first.rollout_id: first.status, second.rollout_id: second.status} == {
        late.rollout_id: "failed",
        in_time.rollout_id: "succeeded",
    }
    assert begun == ["in time"]


async def test_what_a_timed_out_thread_left_running_works_for_nobody() -> None:
    seen: list[Any] = []
    release, done = threading.Event(), threading.Event()

    def agent(task: Any) -> None:
        release.wait(10)
        seen.append(current_attempt())
        done.set()

    await run_one(agent, config=RolloutConfig(timeout_seconds=0.1), store=patient_store())
    release.set()
    assert await asyncio.to_thread(done.wait, 20)
    assert seen == [None]


async def test_an_attempt_that_timed_out_is_tried_again() -> None:
    tries: list[str] = []

    async def agent(task: Any) -> str:
        tries.append("x")
        if len(tries) == 1:
            await asyncio.sleep(60)
        return "done"

    config = RolloutConfig(timeout_seconds=1.0, max_attempts=2, retry_condition=("timeout",))
    ended, _ = await run_one(agent, config=config, store=patient_store())
    assert (ended.status, ended.attempt.sequence_id, len(tries)) == ("succeeded", 2, 2)


async def test_an_agent_that_raises_is_not_tried_again_unless_the_rollout_says_so() -> None:
    tries: list[str] = []

    def agent(task: Any) -> str:
        tries.append("x")
        raise ValueError("always")

    ended, _ = await run_one(agent, config=RolloutConfig(max_attempts=3, retry_condition=("timeout",)))
    assert (ended.status, len(tries)) == ("failed", 1)
    ended, _ = await run_one(agent, config=RolloutConfig(max_attempts=3, retry_condition=("failed",)))
    assert (ended.status, ended.attempt.sequence_id, len(tries)) == ("failed", 3, 4)
