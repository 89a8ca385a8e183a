import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import verify
from leyden.core.data.resources import LLM, NamedResources, PromptTemplate
from leyden.core.data.rollout import AttemptedRollout, AttemptStatus, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.adapters.rollout_function import rollout
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.runner import Runner
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.running import (
    NO_GATEWAY,
    TEST_KEY,
    error_of,
    finished,
    rewards_in,
    run_one,
    runner_config,
    running,
)
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import Recorder


async def echo(task: Any) -> Any:
    return task


async def sleeps(task: Any) -> Any:
    await asyncio.sleep(60)


def one(task: Any, result: Any) -> float:
    return 1.0


async def test_a_sync_agent_works_in_a_thread_and_an_async_one_on_the_loop() -> None:
    loop = asyncio.get_running_loop()

    def sync_agent(task: str) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return task.upper()

    async def async_agent(task: str) -> str:
        assert asyncio.get_running_loop() is loop
        return task.upper()

    for agent in (sync_agent, async_agent):
        ended, spans = await run_one(agent, "hello")
        assert (ended.status, ended.attempt.status, ended.attempt.worker_id) == ("succeeded", "succeeded", "worker")
        (result,) = spans
        assert (result.name, result.attributes[semconv.RESULT]) == (semconv.RESULT, "HELLO")


async def test_each_attempt_is_open_around_its_agent_and_signed() -> None:
    def agent(task: Any) -> Any:
        attempt = current_attempt()
        assert attempt is not None
        return attempt

    seen: list[Any] = []

    def reward(task: Any, result: Any) -> float:
        seen.append((result, current_attempt()))
        return 1.0

    ended, _ = await run_one(agent, mode="train", reward=reward)
    ((attempt, during_reward),) = seen
    ids = ended.rollout_id, ended.attempt.attempt_id
    assert verify(TEST_KEY, attempt.token) == ids
    assert (attempt.rollout_id, attempt.attempt_id, attempt.gateway_url, attempt.mode) == (*ids, NO_GATEWAY, "train")
    assert attempt.closed.is_set()
    assert during_reward is None
    assert current_attempt() is None


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_n_attempts_run_at_once_and_no_more(kind: str) -> None:
    n, now, most = 8, 0, 0
    lock = threading.Lock()

    def enter(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    def sync_agent(task: Any) -> None:
        enter(1)
        time.sleep(0.1)
        enter(-1)

    async def async_agent(task: Any) -> None:
        enter(1)
        await asyncio.sleep(0.1)
        enter(-1)

    store = MemoryStore()
    ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(3 * n)]
    async with running(store, sync_agent if kind == "sync" else async_agent, concurrency=n) as runner:
        await finished(store, ids)
    assert most == n
    assert (runner.running, runner.finished) == (0, 3 * n)


async def test_results_that_cannot_be_shown_are_no_failure() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    results: list[tuple[Any, str]] = [
        (Hostile(), "Hostile"),
        ("x" * 5000, "x" * 2000),
        (None, "None"),
        ([[]] * 900, "[[]"),
    ]
    for result, shown in results:

        def agent(task: Any, result: Any = result) -> Any:
            return result

        ended, spans = await run_one(agent)
        text = str(spans[0].attributes[semconv.RESULT])
        assert ended.status == "succeeded"
        assert shown in text
        assert len(text) <= 2001


async def test_resources_are_the_attempts_own() -> None:
    seen: list[NamedResources] = []

    @rollout
    def agent(task: Any, resources: NamedResources, rollout: AttemptedRollout) -> float:
        llm = resources["main_llm"]
        assert isinstance(llm, LLM)
        assert llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id) == llm.endpoint
        seen.append(resources)
        return 1.0

    store = MemoryStore()
    given = LLM(endpoint="http://real", model="m", api_key="secret", sampling_parameters={"temperature": 0.5})
    await store.add_resources({"main_llm": given, "prompt": PromptTemplate(template="old")})
    first = await store.enqueue_rollout("t")
    await store.add_resources({"main_llm": given, "prompt": PromptTemplate(template="new")})
    second = await store.enqueue_rollout("t")
    async with running(store, agent, concurrency=1):
        ended = await finished(store, [first.rollout_id, second.rollout_id])
    assert {e.status for e in ended} == {"succeeded"}
    llm = seen[0]["main_llm"]
    assert isinstance(llm, LLM)
    head, _, tail = llm.endpoint.partition("/a/")
    token, _, path = tail.partition("/")
    assert (head, path, llm.api_key, llm.model) == (NO_GATEWAY, "v1", "leyden", "m")
    assert verify(TEST_KEY, token) == llm.attempt
    assert llm.sampling_parameters == {"temperature": 0.5}
    assert [r["prompt"] for r in seen] == [PromptTemplate(template="old"), PromptTemplate(template="new")]


async def test_a_silent_agent_stays_alive_by_heartbeats() -> None:
    store, heartbeats = MemoryStore(), set[float]()

    async def silent(task: Any) -> str:
        async with asyncio.timeout(20):
            while len(heartbeats) < 3:
                (rollout,) = (await store.query_rollouts()).items
                assert isinstance(rollout, AttemptedRollout)
                if (last := rollout.attempt.last_heartbeat_time) is not None:
                    heartbeats.add(last)
                await asyncio.sleep(0.01)
        return "done"

    queued = await store.enqueue_rollout(1, config=RolloutConfig(unresponsive_seconds=10))
    async with running(store, silent, heartbeat_seconds=0.05):
        (ended,) = await finished(store, [queued.rollout_id])
    assert ended.attempt.status == "succeeded"


async def test_an_agent_without_a_sign_of_life_is_given_up() -> None:
    async def silent(task: Any) -> str:
        await asyncio.sleep(0.6)
        return "done"

    ended, _ = await run_one(silent, config=RolloutConfig(unresponsive_seconds=0.25), heartbeat_seconds=60)
    assert ended.attempt.status != "succeeded"


async def test_a_cancelled_rollout_stops_its_agent() -> None:
    stopped = asyncio.Event()

    async def agent(task: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    store = MemoryStore()
    rollout = await store.enqueue_rollout("t")
    async with running(store, agent, heartbeat_seconds=0.05) as runner:
        while runner.running == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        await asyncio.wait_for(stopped.wait(), 20)
        while runner.running:
            await asyncio.sleep(0.01)
    ended = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(ended, AttemptedRollout)
    assert ended.status == "cancelled"
    assert error_of(ended)["kind"] == "cancelled"


async def test_a_stop_puts_unfinished_rollouts_back() -> None:
    store = MemoryStore()
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(3)]

    async with running(store, sleeps, concurrency=2) as runner:
        while runner.running < 2:
            await asyncio.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    found = await store.query_rollouts(rollout_id_in=ids)
    assert sorted(r.status for r in found) == ["queuing", "requeuing", "requeuing"]
    again = await store.dequeue_many_rollouts(limit=3)
    assert sorted(r.attempt.sequence_id for r in again) == [1, 2, 2]


async def test_spans_are_stored_before_the_attempt_is_marked() -> None:
    order: list[str] = []

    class Watched(MemoryStore):
        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            order.append("spans")
            return await super().add_many_spans(spans)

        async def update_attempt(self, *args: Any, **fields: Any) -> Any:
            order.append(fields["status"])
            return await super().update_attempt(*args, **fields)

    class Flushing(Recorder):
        async def flush(self) -> None:
            order.append("flush")

    store, stopped = Watched(), asyncio.Event()
    rollout = await store.enqueue_rollout("t")
    runner = Runner(store, AgentSource.of(echo), config=runner_config(), recorder=Flushing(store.add_many_spans))
    task = asyncio.create_task(runner.run_until(stopped))
    await finished(store, [rollout.rollout_id])
    stopped.set()
    await task
    assert order == ["running", "flush", "spans", "succeeded"]


async def test_hooks_see_the_rollout_and_cannot_break_it(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[str, Any]] = []

    class Notes(Hook):
        async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
            calls.append(("rollout start", rollout.input))

        async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            calls.append(("trace start", current_attempt() is not None))

        async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
            emit_reward(0.125)
            calls.append(("trace end", None))

        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
            calls.append(("rollout end", len(spans)))

    class Broken(Hook):
        async def on_trace_start(self, **given: Any) -> None:
            raise ValueError("hook is broken")

    ended, spans = await run_one(echo, "t", hooks=(Broken(), Notes()))
    assert ended.status == "succeeded"
    assert calls == [("rollout start", "t"), ("trace start", True), ("trace end", None), ("rollout end", 2)]
    assert rewards_in(spans) == [0.125]
    assert "hook is broken" in caplog.text


async def test_a_store_that_fails_for_a_while_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(MemoryStore):
        failures = 2

        async def dequeue_many_rollouts(self, **given: Any) -> list[AttemptedRollout]:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("store is away")
            return await super().dequeue_many_rollouts(**given)

    store = Flaky()
    rollout = await store.enqueue_rollout("t")
    async with running(store, echo):
        (ended,) = await finished(store, [rollout.rollout_id])
    assert ended.status == "succeeded"
    assert caplog.text.count("store is away") == 2


@pytest.mark.parametrize("status", ["timeout", "failed"])
async def test_an_attempt_that_the_store_gave_up_is_left_as_it_is(status: AttemptStatus) -> None:
    store = MemoryStore()
    rollout = await store.enqueue_rollout("t")

    async def agent(task: Any) -> str:
        await store.update_attempt(rollout.rollout_id, "latest", status=status)
        return "done"

    async with running(store, agent) as runner:
        await finished(store, [rollout.rollout_id])
        while runner.finished < 1:
            await asyncio.sleep(0.01)
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.status == status


@pytest.mark.parametrize("changes", [{"key": b""}, {"concurrency": 0}])
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        runner_config(**changes)
