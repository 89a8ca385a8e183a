"""Hooks around real attempts, and the trajectory that a hook reads from its adapter."""

import asyncio
import re
from collections.abc import Generator
from typing import Any

import pytest
from openai import AsyncOpenAI

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt, AttemptedRollout, RolloutConfig
from leyden.core.data.transition import Trajectory
from leyden.core.errors import NotFound, UsageError
from leyden.core.runner.adapters.builtin import FunctionAdapter
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.running import error_of, finished, patient_store, rewards_in, run_one, running
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_message, emit_reward, operation
from leyden.core.trajectory.select import Selector


class Diary(Hook):
    """Writes down what happens, and what can be seen of it then."""

    def __init__(self, name: str, diary: list[Any]) -> None:
        self.name, self.diary = name, diary

    def note(self, moment: str, rollout: AttemptedRollout, **more: Any) -> None:
        self.diary.append({"hook": self.name, "moment": moment, "rollout": rollout.rollout_id, **more})

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: AttemptedRollout) -> None:
        assert callable(agent)
        self.note("rollout start", rollout)

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: AttemptedRollout) -> None:
        open_now = current_attempt()
        assert open_now is not None
        self.note("trace start", rollout, attempt=open_now.attempt_id)
        emit_message(f"{self.name} was here")

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: AttemptedRollout) -> None:
        assert current_attempt() is not None
        self.note("trace end", rollout)

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: AttemptedRollout, spans: Any) -> None:
        assert current_attempt() is None
        marked = await runner.store.get_latest_attempt(rollout.rollout_id)
        self.note("rollout end", rollout, status=marked.status, spans=[span.name for span in spans])


async def echo(task: Any) -> Any:
    await asyncio.sleep(0)
    return task


async def fails(task: Any) -> Any:
    raise LookupError("no luck")


async def hangs(task: Any) -> Any:
    await asyncio.sleep(60)


def moments(diary: list[Any]) -> list[tuple[str, str]]:
    return [(entry["moment"], entry["hook"]) for entry in diary]


async def test_hooks_are_called_in_order_and_see_what_is_stored() -> None:
    diary: list[Any] = []
    ended, _ = await run_one(echo, "t", hooks=(Diary("one", diary), Diary("two", diary)), reward=lambda t, r: 1.0)  # pyright: ignore[reportUnknownLambdaType]
    wanted = ("rollout start", "trace start", "trace end", "rollout end")
    assert moments(diary) == [(moment, hook) for moment in wanted for hook in ("one", "two")]
    assert diary[2]["attempt"] == ended.attempt.attempt_id
    assert diary[-1]["status"] == "succeeded"
    assert diary[-1]["spans"] == [semconv.MESSAGE, semconv.MESSAGE, semconv.RESULT, semconv.REWARD]


@pytest.mark.parametrize(
    ("agent", "status", "seen"),
    [
        (fails, "failed", ["rollout start", "trace start", "trace end", "rollout end"]),
        (hangs, "timeout", ["rollout start", "trace start", "rollout end"]),
    ],
)
async def test_an_attempt_that_does_not_succeed_has_its_hooks_too(agent: Any, status: str, seen: list[str]) -> None:
    diary: list[Any] = []
    config = RolloutConfig(timeout_seconds=1.5)
    ended, _ = await run_one(agent, "t", hooks=(Diary("one", diary),), config=config, store=patient_store())
    assert ended.attempt.status == status
    assert [moment for moment, _ in moments(diary)] == seen
    assert diary[-1]["status"] == status
    assert semconv.RESULT in diary[-1]["spans"]


class Leaves(Hook):
    """Ends the process at each moment, or tries to."""

    async def on_rollout_start(self, **given: Any) -> None:
        raise SystemExit(3)

    async def on_trace_start(self, **given: Any) -> None:
        raise asyncio.CancelledError

    async def on_trace_end(self, **given: Any) -> None:
        raise KeyboardInterrupt

    async def on_rollout_end(self, **given: Any) -> None:
        raise SystemExit(4)


async def test_whatever_a_hook_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    diary: list[Any] = []
    ended, _ = await run_one(echo, "t", hooks=(Leaves(), Diary("two", diary)))
    assert (ended.status, ended.attempt.status) == ("succeeded", "succeeded")
    assert [moment for moment, _ in moments(diary)] == ["rollout start", "trace start", "trace end", "rollout end"]
    assert caplog.text.count("hook Leaves failed") == 4


@pytest.mark.parametrize("kind", [SystemExit, ValueError])
def test_a_hook_that_cannot_be_made_is_one_line(kind: type[BaseException]) -> None:
    class Wants(Hook):
        def __init__(self) -> None:
            raise kind("no")

    with pytest.raises(UsageError, match=rf"^hook .*Wants cannot be created: {kind.__name__}: no \(.*line \d+\); give"):
        LoadedAgent.of(echo, hooks=[Wants])


async def test_many_attempts_at_once_have_four_moments_each() -> None:
    diary: list[Any] = []
    store = MemoryStore()
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(32)]
    async with running(store, echo, hooks=(Diary("one", diary),), concurrency=32) as runner:
        await finished(store, ids)
        while runner.running:
            await asyncio.sleep(0.01)
    for rollout_id in ids:
        own = [entry["moment"] for entry in diary if entry["rollout"] == rollout_id]
        assert own == ["rollout start", "trace start", "trace end", "rollout end"]


async def test_a_task_that_cannot_be_given_has_no_beginning_but_an_end() -> None:
    diary: list[Any] = []
    hooks = (Diary("one", diary),)
    ended, _ = await run_one(echo, "t", hooks=hooks, input=lambda row: row["q"])  # pyright: ignore[reportUnknownLambdaType]
    assert error_of(ended)["kind"] == "input"
    assert [moment for moment, _ in moments(diary)] == ["rollout end"]


# --- Trajectories


@pytest.fixture
def bench() -> Generator[GatewayBench]:
    bench = GatewayBench(lambda conversation: f"I heard: {conversation[-1].text}")
    bench.start()
    yield bench
    bench.stop()


async def drafts_and_checks(task: Any) -> Any:
    attempt = current_attempt()
    assert attempt is not None
    url = f"{attempt.gateway_url}/a/{attempt.token}/v1"
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        for speaker in ("draft", "check"):
            with operation(speaker):
                await client.chat.completions.create(
                    model="any",
                    messages=[{"role": "user", "content": f"{speaker} {task}"}],
                    extra_headers={"x-leyden-agent": speaker},
                )
    emit_reward({"style": 0.25, "truth": 0.5})


@pytest.mark.integration
async def test_a_hook_reads_the_trajectory_of_the_attempt_that_ended(bench: GatewayBench) -> None:
    found: list[Trajectory] = []

    class Reads(Hook):
        async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: AttemptedRollout, spans: Any) -> None:
            collect = runner.source.adapter.collect_trajectory
            found.append(await collect(runner.store, rollout.attempt))
            found.append(await collect(runner.store, rollout.attempt, Selector(agent_match="^draft$")))

    store = bench.store
    where: dict[str, Any] = {"gateway_url": bench.url, "key": bench.gateway.key}
    waiting = await store.enqueue_rollout("seven", mode="train")
    async with running(store, drafts_and_checks, hooks=(Reads(),), **where) as runner:
        (ended,) = await finished(store, [waiting.rollout_id])
        while runner.running:
            await asyncio.sleep(0.01)
    everything, drafts = found
    assert everything.attempt_id == ended.attempt.attempt_id
    assert everything.succeeded
    assert [call.agent for call in everything.transitions] == ["draft", "check"]
    assert [list(call.response_ids) for call in everything.transitions] == [call.response_ids for call in bench.log]
    assert (everything.reward, everything.dimensions) == (0.75, {"style": 0.25, "truth": 0.5})
    assert [call.agent for call in drafts.transitions] == ["draft"]
    assert drafts.excluded == {"not selected": 1}


async def test_each_attempt_of_a_rollout_has_its_own_trajectory() -> None:
    rewards = iter([0.25, 0.5])

    async def agent(task: Any) -> None:
        emit_reward(next(rewards))
        if len(attempts) == 0:
            attempts.append(current_attempt())
            raise LookupError("once")

    attempts: list[Any] = []
    config = RolloutConfig(max_attempts=2, retry_condition=("failed",))
    store = MemoryStore()
    waiting = await store.enqueue_rollout("t", config=config)
    async with running(store, agent):
        (ended,) = await finished(store, [waiting.rollout_id])
    first, second = await store.query_attempts(ended.rollout_id)
    collected = [await FunctionAdapter().collect_trajectory(store, attempt) for attempt in (first, second)]
    assert [(t.attempt_id, t.reward, t.succeeded) for t in collected] == [
        (first.attempt_id, 0.25, False),
        (second.attempt_id, 0.5, True),
    ]
    assert rewards_in((await store.query_spans(ended.rollout_id)).items) == [0.25, 0.5]


async def test_an_attempt_that_the_store_does_not_know_is_not_found() -> None:
    unknown = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0)
    with pytest.raises(NotFound, match=re.escape("there is no attempt at of rollout ro")):
        await FunctionAdapter().collect_trajectory(MemoryStore(), unknown)
