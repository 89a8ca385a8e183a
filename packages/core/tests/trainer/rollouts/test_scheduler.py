"""Batches at every pace over a real store and collector, with a runner that lets chosen groups wait."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from leyden.core.algorithm.staleness import LoopKind, staleness
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Attributes, Span
from leyden.core.data.transition import Transition
from leyden.core.errors import RewardError
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.rollouts.collector import Collected, Collector
from leyden.core.trainer.rollouts.scheduler import Batches, make_batches

CONFIG = RunConfig(name="r", agent="a", policy="p", tasks_per_step=2, group_size=2, concurrency=4)
PATIENCE = 10.0
ONE_OFF, ASYNC = LoopKind(loop="one_off", max_staleness=1), LoopKind(loop="async", max_staleness=2)


@dataclass
class Run:
    """A store, a runner of scripted agents, and how far learning is."""

    steps: int
    step: int = 0
    store: MemoryStore = field(default_factory=MemoryStore)
    ran: Counter[str] = field(default_factory=Counter[str])
    held: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """Of tasks, by the name in the rollouts' metadata: their rollouts end when it is set."""
    broken: str = ""
    """The task whose reward function fails."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def hold(self, task: str) -> asyncio.Event:
        return self.held.setdefault(task, asyncio.Event())

    async def work(self) -> None:
        async with asyncio.TaskGroup() as attempts:
            while True:
                for rollout in await self.store.dequeue_many_rollouts(limit=4, timeout=PATIENCE):
                    attempts.create_task(self.attempt(rollout))

    async def attempt(self, rollout: AttemptedRollout) -> None:
        ids, task = (rollout.rollout_id, rollout.attempt.attempt_id), str(rollout.metadata["task"])
        async with self.changed:
            self.ran[rollout.rollout_id] += 1
            self.changed.notify_all()
        began = self.step
        if task in self.held:
            await self.held[task].wait()
        if task == self.broken:
            await self.store.update_attempt(*ids, metadata={"error": {"kind": "reward", "message": "mend it"}})
        versions = [began, 1, self.step, 1] if self.step > began else [began, 2]
        attributes: Attributes = {
            semconv.CALL_ID: "c",
            semconv.OUTPUT_TOKENS: 2,
            semconv.POLICY_VERSION: began,
            semconv.POLICY_VERSIONS: versions,
            semconv.PROMPT_IDS: pack_ids([1]),
            semconv.RESPONSE_IDS: pack_ids([2, 3]),
            semconv.SAMPLING_LOGPROBS: pack_log_probs([-1.0, -1.0]),
            semconv.SAMPLING_USED: "{}",
        }
        await self.store.add_span(span(ids, "chat", "1", attributes))
        await self.store.add_span(span(ids, semconv.REWARD, "2", {semconv.REWARD_VALUE: 1.0}))
        await self.store.update_attempt(*ids, status="failed" if task == self.broken else "succeeded")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, which only rollouts that begin can change."""
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(holds)

    @asynccontextmanager
    async def batches(self, pace: LoopKind, position: dict[str, Any] | None = None) -> AsyncGenerator[Batches]:
        collector = Collector(
            self.store,
            CONFIG,
            tasks=[f"task {number}" for number in range(7)],
            held_out={},
            display=Display(),
            check_workers=nothing,
            flush=nothing,
        )
        worker = asyncio.create_task(self.work())
        batches = make_batches(pace, collector, self, position or {})
        try:
            async with asyncio.timeout(PATIENCE):
                yield batches
        finally:
            await batches.close()
            worker.cancel()
            await asyncio.wait({worker})

    async def learn(self, batches: Batches) -> Collected:
        """Take one step."""
        collected = await batches.next()
        await batches.settle()
        self.step += 1
        batches.step_taken()
        return collected


async def nothing() -> None:
    return


def span(ids: tuple[str, str], name: str, span_id: str, attributes: Attributes) -> Span:
    rollout_id, attempt_id = ids
    return factories.span(
        name,
        attributes,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=0,
        span_id=span_id * 16,
        end_time=1.0,
    )


def calls(collected: Collected) -> list[Transition]:
    return [call for group in collected.groups for t in group.trajectories for call in t.transitions]


def tasks(collected: Collected) -> list[str]:
    return [group.task_id for group in collected.groups]


async def test_in_step_every_batch_is_drawn_by_the_weights_that_learn_from_it() -> None:
    run = Run(steps=3)
    async with run.batches(LoopKind()) as batches:
        for step in range(3):
            found = await run.learn(batches)
            assert staleness(calls(found), step)["staleness_max"] == 0
    assert len(run.ran) == 3 * 4


async def test_one_batch_ahead_is_drawn_while_learning_by_the_weights_from_before() -> None:
    run = Run(steps=3)
    ages: list[float] = []
    async with run.batches(ONE_OFF) as batches:
        for step in range(3):
            found = await batches.next()
            await run.until(lambda step=step: len(run.ran) == 4 * min(step + 2, 3))
            ages.append(staleness(calls(found), step)["staleness_max"])
            assert staleness(calls(found), step)["mixed_version_share"] == 0
            await batches.settle()
            run.step += 1
            batches.step_taken()
    assert ages == [0, 1, 1]
    assert set(run.ran) == {
        f"train-v{version}-b{batch}-{place}-{copy}"
        for version, batch in ((0, 0), (0, 1), (1, 2))
        for place in (0, 1)
        for copy in (0, 1)
    }, "none is begun that no step is left to learn from"


async def test_new_weights_wait_for_the_batch_ahead() -> None:
    run = Run(steps=2)
    slow = run.hold("1/0")
    async with run.batches(ONE_OFF) as batches:
        await batches.next()
        settling = asyncio.create_task(batches.settle())
        await run.until(lambda: len(run.ran) == 8)
        assert not settling.done()
        slow.set()
        await settling


async def test_a_group_that_lags_is_overtaken_and_never_gets_older_than_the_bound() -> None:
    run = Run(steps=6)
    slow = run.hold("g1")
    seen: list[str] = []
    async with run.batches(ASYNC) as batches:
        for step in range(2):
            found = await run.learn(batches)
            seen.extend(tasks(found))
            assert staleness(calls(found), step)["staleness_max"] <= 2
        waiting = asyncio.create_task(batches.next())
        await run.until(lambda: len(run.ran) >= 2 * (2 * 2 + 3))
        assert not waiting.done(), "a batch without it would let it get older"
        slow.set()
        found = await waiting
        seen.extend(tasks(found))
        assert staleness(calls(found), 2)["staleness_max"] == 2
        run.step += 1
        batches.step_taken()
        for step in range(3, 6):
            found = await run.learn(batches)
            seen.extend(tasks(found))
            assert staleness(calls(found), step)["staleness_max"] <= 2
    assert "g1" in seen[4:6]
    assert sorted(seen) == sorted(f"g{number}" for number in range(12))
    assert set(run.ran.values()) == {1}


async def test_no_more_begins_than_runners_have_places_for() -> None:
    run = Run(steps=9)
    for number in range(30):
        run.hold(f"g{number}")
    async with run.batches(ASYNC) as batches:
        waiting = asyncio.create_task(batches.next())
        await run.until(lambda: len(run.ran) == 4)
        assert len(await run.store.query_rollouts()) == 4
        run.hold("g0").set()
        await run.until(lambda: len(run.ran) == 6)
        assert len(await run.store.query_rollouts()) == 6
        waiting.cancel()


async def test_nothing_begins_while_paused() -> None:
    run = Run(steps=9)
    async with run.batches(ASYNC) as batches:
        await batches.next()
        with batches.paused():
            begun = batches.position()["begun"]
            run.step += 1
            batches.step_taken()
            await batches.next()
            assert batches.position()["begun"] == begun
        assert batches.position()["begun"] > begun


class Instant:
    """A collector whose groups end as soon as they are looked at."""

    config, display = CONFIG, Display()

    async def group(self, number: int, on_finished: Callable[[int], None]) -> Collected:
        on_finished(CONFIG.group_size)
        return Collected(rollouts=number)


async def test_while_learning_there_is_always_a_further_group() -> None:
    instant: Any = Instant()
    batches = make_batches(ASYNC, instant, Run(steps=9), {})
    for _ in range(5):
        await batches.next()
        assert batches.position()["due"]
        for _ in range(50):  # turns of the loop: until whatever was begun has ended
            await asyncio.sleep(0)
    await batches.close()


@pytest.mark.parametrize("pace", [LoopKind(), ONE_OFF, ASYNC], ids=lambda pace: pace.loop)
async def test_what_was_in_flight_is_finished_and_learned_from_once(pace: LoopKind) -> None:
    """Stopped with a batch in flight, at the place that a checkpoint keeps; then gone on with."""
    run = Run(steps=5)
    seen: list[str] = []
    async with run.batches(pace) as batches:
        for _ in range(2):
            seen.extend(tasks(await run.learn(batches)))
        position = json.loads(json.dumps(batches.position()))
        await batches.next()
    ran = run.ran.copy()
    async with run.batches(pace, position) as batches:
        for step in range(2, 5):
            found = await run.learn(batches)
            seen.extend(tasks(found))
            assert staleness(calls(found), step)["staleness_max"] <= pace.max_staleness
    assert len(set(seen)) == len(seen) == 5 * 2
    finished = {r.rollout_id for r in await run.store.query_rollouts(status_in=["succeeded"])}
    assert finished == set(run.ran)
    assert all(run.ran[rollout] == 1 for rollout in ran), "a rollout was run again"
    assert len(run.ran) == 5 * 4


@pytest.mark.parametrize("pace", [ONE_OFF, ASYNC], ids=lambda pace: pace.loop)
async def test_what_the_user_must_mend_stops_the_run_before_new_weights_are_served(pace: LoopKind) -> None:
    run = Run(steps=9, broken="1/0" if pace is ONE_OFF else "g2")
    async with run.batches(pace) as batches:
        with pytest.raises(RewardError, match="mend it"):
            for _ in range(3):
                await run.learn(batches)
    assert run.step <= 1
