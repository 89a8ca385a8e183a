"""The collector over a real store, with a runner that does as each task says."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from statistics import fmean, stdev
from typing import Any, cast

import pytest
from msgspec.structs import replace

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.algorithm.external_loop import TaskRequest
from leyden.core.credit.registry import CREDIT
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.reasons import EARLIER_ATTEMPT
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Attributes, Span
from leyden.core.errors import RewardError, TaskError
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.rollouts import collector as module
from leyden.core.trainer.rollouts.collector import Collector

CONFIG = RunConfig(name="r", agent="a", policy="p", tasks="t.jsonl", tasks_per_step=2, group_size=2, seed=0)


def span(rollout: AttemptedRollout, name: str, attributes: Attributes) -> Span:
    return factories.span(
        name,
        attributes,
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=0,
        span_id=f"{abs(hash((rollout.attempt.attempt_id, name))):016x}"[:16],
        end_time=1.0,
    )


def call(rollout: AttemptedRollout) -> Span:
    attributes: Attributes = {
        semconv.CALL_ID: "c",
        semconv.OUTPUT_TOKENS: 2,
        semconv.POLICY_VERSION: 0,
        semconv.PROMPT_IDS: pack_ids([1]),
        semconv.RESPONSE_IDS: pack_ids([2, 3]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-1.0, -1.0]),
        semconv.SAMPLING_USED: "{}",
    }
    return span(rollout, "chat", attributes)


class Work:
    """Runs what is queued: each task lists what its attempts do, one after the other, also by version of resources."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.ran: list[str] = []

    async def run(self) -> None:
        while True:
            for rollout in await self.store.dequeue_many_rollouts(limit=4, timeout=5):
                self.ran.append(rollout.rollout_id)
                await self.attempt(rollout, rollout.input["does"][rollout.attempt.sequence_id - 1])

    async def attempt(self, rollout: AttemptedRollout, does: Any) -> None:
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        if isinstance(does, dict):
            does = cast("dict[str, Any]", does)[rollout.resources_id or ""]
        if does in ("reward", "input"):
            await self.store.update_attempt(*ids, metadata={"error": {"kind": does, "message": "mend it"}})
            await self.store.update_attempt(*ids, status="failed")
        elif does == "fails":
            await self.store.update_attempt(*ids, status="failed")
        elif does == "hangs":
            await self.store.add_span(call(rollout))
            await self.store.update_attempt(*ids, status="timeout")
        elif does == "silent":
            await self.store.update_attempt(*ids, status="succeeded")
        elif does != "waits":
            form, _, goal = str(does).partition("+")
            parts = {
                f"{semconv.REWARD_DIMENSION}{name}": float(part)
                for name, part in (("form", form), ("goal", goal))
                if goal
            }
            value: dict[str, Any] = {semconv.REWARD_VALUE: float(form) + float(goal or 0)}
            await self.store.add_span(call(rollout))
            await self.store.add_span(span(rollout, semconv.REWARD, value | parts))
            await self.store.update_attempt(*ids, status="succeeded")


@asynccontextmanager
async def working(tasks: list[Any]) -> AsyncGenerator[tuple[Collector, Work]]:
    store = MemoryStore()

    async def check() -> None:
        if runner.done():
            runner.result()

    async def flush() -> None:
        flushed.append(len(work.ran))

    work = Work(store)
    runner = asyncio.create_task(work.run())
    held_out = {"val": tasks}
    sides: dict[str, Any] = {"display": Display(), "check_workers": check, "flush": flush}
    flushed: list[int] = []
    yield Collector(store, CONFIG, tasks=tasks, held_out=held_out, **sides), work
    assert all(flushed), "records are flushed once rollouts have run, before they are read"
    runner.cancel()
    await asyncio.wait({runner})
    await store.close()


async def test_a_batch_becomes_groups_of_trajectories() -> None:
    async with working([{"does": [1.0]}, {"does": [0.0]}]) as (collector, _):
        collected = await collector.train(0, version=0)
    assert [len(group.trajectories) for group in collected.groups] == [2, 2]
    assert sorted(t.reward or 0.0 for group in collected.groups for t in group.trajectories) == [0.0, 0.0, 1.0, 1.0]
    assert (collected.rollouts, collected.failed, collected.empty, collected.tokens) == (4, 0, 0, 8)


async def test_what_has_finished_is_read_while_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    read = asyncio.Event()
    async with working([{"does": [1.0]}, {"does": ["waits"]}]) as (collector, work):
        query_spans = work.store.query_spans

        async def noted(*given: Any, **named: Any) -> Any:
            read.set()
            return await query_spans(*given, **named)

        monkeypatch.setattr(work.store, "query_spans", noted)
        collecting = asyncio.create_task(collector.train(0, version=0))
        await asyncio.wait_for(read.wait(), 20)
        assert not collecting.done()
        for rollout in await work.store.query_rollouts(status_in=["preparing"]):
            await work.store.update_attempt(rollout.rollout_id, "latest", status="failed")
        collected = await collecting
    assert (collected.rollouts, collected.failed) == (4, 2)
    assert [len(group.trajectories) for group in collected.groups] == [2, 2]


async def test_the_same_batch_of_the_same_version_is_not_run_again() -> None:
    async with working([{"does": [1.0]}, {"does": [0.0]}]) as (collector, work):
        await collector.train(0, version=0)
        await collector.train(0, version=0)
        assert len(work.ran) == 4
        await collector.train(0, version=1)
        assert len(work.ran) == 8


async def test_a_group_divided_over_prompts_stays_one_group_and_each_task_has_one_baseline() -> None:
    """Advantages equal (R - mean) / std over all rollouts of the task, whichever prompt they ran with."""
    earned = {"rs-a": 1.0, "rs-b": 0.0, "rs-c": 0.5}
    tasks = [{"does": [earned]}, {"does": [{name: 2 * reward for name, reward in earned.items()}]}]
    async with working(tasks) as (collector, work):
        collector.config = replace(CONFIG, group_size=7)
        for name in earned:
            await work.store.update_resources(name, {})
        collector.divided = tuple(earned)
        collected = await collector.train(0, version=0)
        (found,) = (await collector.group(5, lambda _: None)).groups
        rollouts = {one.rollout_id: one for one in await work.store.query_rollouts()}
    assert [len(group.trajectories) for group in collected.groups] == [7, 7]
    used = [[rollouts[one.rollout_id].resources_id for one in group.trajectories] for group in collected.groups]
    counted = [Counter(own) for own in used]
    assert [sorted(own.values()) for own in counted] == [[2, 2, 3], [2, 2, 3]]
    assert counted[0].most_common(1) != counted[1].most_common(1)  # the remainder does not always go to one prompt
    assert len({rollouts[one.rollout_id].resources_id for one in found.trajectories}) == 3
    weighted = weigh(collected.groups, CREDIT.make("uniform"), ADVANTAGE.make("grpo")).transitions
    advantages = {item.transition.rollout_id: item.advantage for item in weighted}
    for group in collected.groups:
        rewards = [one.reward or 0.0 for one in group.trajectories]
        mean, deviation = fmean(rewards), stdev(rewards)
        expected = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
        assert [advantages[one.rollout_id] for one in group.trajectories] == pytest.approx(expected)
        assert min(expected) < 0 < max(expected)  # with a baseline for each prompt, all would be 0


async def test_a_held_out_set_can_be_evaluated_with_another_version_of_the_resources() -> None:
    async with working([{"does": [{"rs-old": 0.0, "rs-new": 1.0}]}]) as (collector, work):
        for name in ("rs-old", "rs-new"):
            await work.store.update_resources(name, {})
        collector.resources_id = "rs-new"
        new = await collector.evaluate("val", "after", sampled=False, version=3)
        old = await collector.evaluate("val", "initial-prompts", sampled=False, version=3, resources_id="rs-old")
    assert (new.success, old.success) == (1.0, 0.0)


async def test_a_task_that_is_asked_for_by_itself_is_run_once_for_its_place_in_a_step() -> None:
    async with working([{"does": [1.0]}, {"does": [0.0]}]) as (collector, work):
        request = TaskRequest(step=3, place=1, row=0, copies=2)
        (group,) = (await collector.task(request)).groups
        assert [one.reward for one in group.trajectories] == [1.0, 1.0]
        await collector.task(request)
        assert sorted(work.ran) == ["train-s3-1-r0-0", "train-s3-1-r0-1"]
        await collector.task(TaskRequest(step=3, place=1, row=1, copies=2))
        await collector.task(TaskRequest(step=4, place=1, row=0, copies=2))
        assert len(work.ran) == 6


async def test_a_held_out_task_that_is_asked_for_is_measured_as_its_row() -> None:
    async with working([{"does": [1.0]}, {"does": [0.0]}]) as (collector, work):
        collected = await collector.task(TaskRequest(step=3, place=1, row=1, copies=1, held_out="val"))
    assert collected.rewards == {"1": 0.0}
    assert work.ran == ["val-val-s3-1-0"]


async def test_in_evaluation_a_failure_earns_nothing_and_a_missing_reward_is_left_out() -> None:
    async with working([{"does": [1.0]}, {"does": ["fails"]}, {"does": ["silent"]}]) as (collector, _):
        collected = await collector.evaluate("val", "before", sampled=False, version=0)
    assert collected.success == 0.5
    assert (collected.failed, collected.empty, collected.unrewarded) == (1, 2, 1)


async def test_in_evaluation_each_dimension_of_the_reward_has_a_mean() -> None:
    tasks = [{"does": ["0.5+1"]}, {"does": ["0.25+0"]}, {"does": ["fails"]}, {"does": ["silent"]}]
    async with working(tasks) as (collector, _):
        collected = await collector.evaluate("val", "before", sampled=False, version=0)
    assert collected.dimensions == {"form": pytest.approx(0.25), "goal": pytest.approx(1 / 3)}
    assert collected.success == pytest.approx(1.75 / 3)


async def test_a_reward_that_is_a_number_has_no_dimensions() -> None:
    async with working([{"does": [1.0]}, {"does": ["fails"]}]) as (collector, _):
        assert (await collector.evaluate("val", "before", sampled=False, version=0)).dimensions == {}


async def test_no_reward_at_all_is_no_success_rate() -> None:
    async with working([{"does": ["silent"]}]) as (collector, _):
        collected = await collector.evaluate("val", "before", sampled=False, version=0)
    assert math.isnan(collected.success)


async def test_calls_of_an_attempt_that_was_tried_again_are_counted() -> None:
    async with working([{"does": ["hangs", 1.0]}, {"does": [0.0]}]) as (collector, _):
        collected = await collector.train(0, version=0)
    assert collected.excluded == {EARLIER_ATTEMPT: 2}
    assert all(len(t.transitions) == 1 for group in collected.groups for t in group.trajectories)


@pytest.mark.parametrize(
    ("kind", "error", "says"), [("reward", RewardError, "^mend it"), ("input", TaskError, "^t.jsonl, task 1: mend it")]
)
async def test_what_the_user_must_mend_stops_the_run_at_once(kind: str, error: type[Exception], says: str) -> None:
    async with working([{"does": [kind]}, {"does": ["waits"]}]) as (collector, _):
        with pytest.raises(error, match=says):
            await collector.train(0, version=0)


async def test_rollouts_that_stand_still_are_noticed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", -CONFIG.timeout_seconds + 0.1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    async with working([{"does": ["waits"]}, {"does": [1.0]}]) as (collector, _):
        with caplog.at_level(logging.WARNING):
            training = asyncio.create_task(collector.train(0, version=0))
            async with asyncio.timeout(20):
                while "no rollout has finished" not in caplog.text:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # it looks ten times more
            training.cancel()
            with pytest.raises(asyncio.CancelledError):
                await training
    assert caplog.text.count("no rollout has finished") == 1
