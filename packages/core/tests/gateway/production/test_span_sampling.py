"""Sampling of production: what is decided, and what the capture application makes of it, over a real store."""

from typing import Any

import httpx
import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.production import CaptureBegin, CaptureBegun, CaptureEnd, ProductionSampling
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import UsageError
from leyden.core.gateway.production.captures import capture_app
from leyden.core.gateway.production.span_sampling import SpanSampler
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.factories import span


class Clock:
    now = 600.0

    def __call__(self) -> float:
        return self.now


def kept(sampler: SpanSampler, reward: float | None = None, count: int = 2000) -> int:
    return sum(sampler.decide(f"ro-{n}", reward, 1) != "dropped" for n in range(count))


def test_a_share_is_kept_and_high_rewards_always() -> None:
    sampler = SpanSampler(ProductionSampling(base_rate=0.1, reward_threshold=0.8))
    assert 150 < kept(sampler) < 250
    assert 150 < kept(sampler, 0.79) < 250
    assert kept(sampler, 0.8) == kept(sampler, 1.5) == 2000
    assert kept(SpanSampler(ProductionSampling(base_rate=0.0)), 100.0) == 0
    assert kept(SpanSampler(ProductionSampling())) == 2000


def test_the_same_rollouts_are_kept_by_every_gateway() -> None:
    decided = [
        [SpanSampler(ProductionSampling(base_rate=0.5)).decide(f"ro-{n}", None, 1) for n in range(50)] for _ in range(2)
    ]
    assert decided[0] == decided[1]
    assert set(decided[0]) == {"base rate", "dropped"}


def test_no_more_spans_a_minute_but_for_high_rewards() -> None:
    clock = Clock()
    sampler = SpanSampler(ProductionSampling(reward_threshold=1.0, max_span_per_minute=10), clock)
    assert [sampler.decide("r", reward, 4) for reward in (0.0, None, 0.5, 1.0, 0.0)] == [
        "base rate",
        "base rate",
        "dropped",
        "high reward",
        "dropped",
    ]
    clock.now += 59.0
    assert sampler.decide("r", 0.0, 1) == "dropped"
    clock.now += 1.0
    assert sampler.decide("r", 1.0, 8) == "high reward"
    assert [sampler.decide("r", 0.0, spans) for spans in (3, 2)] == ["dropped", "base rate"]
    counts = sampler.render().decode()
    assert 'leyden_capture_rollouts_total{decision="dropped"} 4.0' in counts
    assert 'leyden_capture_rollouts_total{decision="high reward"} 2.0' in counts
    assert "leyden_capture_dropped_spans_total 12.0" in counts


@pytest.mark.parametrize(
    "wrong",
    [{"base_rate": 1.5}, {"base_rate": float("nan")}, {"reward_threshold": float("inf")}, {"max_span_per_minute": 0}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is"):
        ProductionSampling(**wrong)


class Captures:
    """The capture application over a store in memory."""

    def __init__(self, sampling: ProductionSampling | None) -> None:
        self.store, self.key = MemoryStore(), new_key()
        app = capture_app(self.store, self.key, authorize=lambda _: True, sampling=sampling)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")

    async def run(self, reward: float | None, *, twice: bool = False) -> AttemptedRollout:
        """A captured run with one call."""
        body = msgspec.msgpack.encode(CaptureBegin(task="task"))
        answer = await self.client.post("/begin", content=body, headers={"authorization": "Bearer t"})
        begun = msgspec.msgpack.decode(answer.content, type=CaptureBegun)
        ids: dict[str, Any] = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt_id, "sequence_id": 0}
        await self.store.add_span(span("chat", span_id="a" * 16, **ids))
        notes = [] if reward is None else [span(semconv.REWARD, {semconv.REWARD_VALUE: reward}, span_id="b" * 16)]
        for _ in range(1 + twice):
            assert await self.end(begun.token, notes) == 200
        found = await self.store.get_rollout_by_id(begun.rollout_id)
        assert isinstance(found, AttemptedRollout)
        return found

    async def end(self, token: str, notes: list[Any]) -> int:
        body = msgspec.msgpack.encode(CaptureEnd(notes=notes))
        headers = {semconv.HEADER_ATTEMPT: token}
        return (await self.client.post("/end", content=body, headers=headers)).status_code


async def test_a_rollout_that_is_dropped_leaves_its_record_and_no_spans() -> None:
    captures = Captures(ProductionSampling(base_rate=0.0, reward_threshold=0.9))
    low, unknown, high = [await captures.run(reward, twice=True) for reward in (0.25, None, 0.9)]
    store = captures.store
    assert [len(await store.query_spans(rollout.rollout_id)) for rollout in (low, unknown, high)] == [0, 0, 2]
    assert {rollout.status for rollout in (low, unknown, high)} == {"succeeded"}
    dropped = {"capture": "complete", "sampling": "dropped"}
    assert low.attempt.metadata == {**dropped, "reward": 0.25, "dropped_spans": 2}
    assert unknown.attempt.metadata == {**dropped, "reward": None, "dropped_spans": 1}
    assert high.attempt.metadata == {"capture": "complete", "sampling": "high reward"}
    counts = (await captures.client.get("/metrics")).text
    assert "leyden_capture_dropped_spans_total 3.0" in counts


async def test_without_sampling_nothing_is_dropped_or_noted() -> None:
    captures = Captures(None)
    rollout = await captures.run(0.0)
    assert rollout.attempt.metadata == {"capture": "complete"}
    assert len(await captures.store.query_spans(rollout.rollout_id)) == 2


async def test_an_end_that_comes_again_changes_nothing() -> None:
    captures = Captures(None)
    rollout = await captures.run(0.0)
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    notes = [span(semconv.REWARD, {semconv.REWARD_VALUE: 1.0}, span_id="c" * 16)]
    answer = captures.client.post(
        "/end",
        content=msgspec.msgpack.encode(CaptureEnd(failed=True, notes=notes)),
        headers={semconv.HEADER_ATTEMPT: mint(captures.key, *ids)},
    )
    assert (await answer).status_code == 200
    assert await captures.store.get_rollout_by_id(rollout.rollout_id) == rollout
    assert len(await captures.store.query_spans(rollout.rollout_id)) == 2


async def test_a_training_rollout_is_never_sampled_away() -> None:
    captures = Captures(ProductionSampling(base_rate=0.0))
    training = await captures.store.start_rollout("task", mode="train")
    ids: dict[str, Any] = {"rollout_id": training.rollout_id, "attempt_id": training.attempt.attempt_id}
    await captures.store.add_span(span("chat", sequence_id=0, **ids))
    token = mint(captures.key, training.rollout_id, training.attempt.attempt_id)
    assert await captures.end(token, []) == 403
    assert len(await captures.store.query_spans(training.rollout_id)) == 1
