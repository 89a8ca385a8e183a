"""The run's side of VERL's rollouts, and VERL's: what is asked is answered, once, however often it is asked."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from leyden.core.algorithm.external_loop import ExternalLoopContext, RunEndpoint, StepTasks, TaskRequest, TaskUsage
from leyden.core.algorithm.verl.driver.run_server import RolloutServer
from leyden.core.algorithm.verl.inside_verl.run_client import RunClient
from leyden.core.algorithm.verl.wire import (
    ROLLOUTS,
    FailedPrompts,
    Replicas,
    UserMessage,
    WeightChange,
    decode_group,
    encode_group,
)
from leyden.core.data.transition import Outcome, TrajectoryGroup
from leyden.core.errors import EngineError, NothingToLearn, RewardError, TrainingError
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.testing.factories import trajectory, transition

ASKED = TaskRequest(step=1, place=0, row=3, copies=2)
OUTCOME = Outcome(kind="tool", name="calculator", succeeded=True, text="4")
CALL = transition((1, 2), (3,), (-0.25,), agent="planner", version=4, outcomes=(OUTCOME,), versions=((4, 1),))
GROUP = TrajectoryGroup(
    task_id="1/0", trajectories=(trajectory(0.5, (CALL,)), trajectory(None, untrained={"s1": "cut"}))
)


class Run:
    """Stands for the run: gives GROUP once it may."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked: list[TaskRequest] = []
        self.served: list[tuple[Sequence[str], int]] = []
        self.may = asyncio.Event()
        self.failure = failure
        self.heard: list[int | TaskUsage | StepTasks] = []

    async def pause(self, version: int) -> None:
        self.heard.append(version)

    def used(self, used: TaskUsage) -> None:
        self.heard.append(used)

    async def taken(self, taken: StepTasks) -> None:
        self.heard.append(taken)

    async def rollouts(self, asked: TaskRequest) -> TrajectoryGroup:
        self.asked.append(asked)
        await self.may.wait()
        if self.failure is not None:
            raise self.failure
        return GROUP

    async def serve_from(self, addresses: Sequence[str], version: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.served.append((addresses, version))


@asynccontextmanager
async def collecting(run: Run, patience: float = 0.01) -> AsyncGenerator[tuple[RolloutServer, RunClient]]:
    served = RolloutServer(cast("ExternalLoopContext", run), patience)
    server = GatewayServer(served.app)
    driver = RunClient(RunEndpoint(url=await server.start(), token="t"), timeout=0.2)
    try:
        yield served, driver
    finally:
        await driver.close()
        await served.close()
        await server.stop()


def seen(group: TrajectoryGroup) -> list[Mapping[str, Any]]:
    """All of a group, comparable."""
    return [
        {
            "attempt": (
                one.rollout_id,
                one.attempt_id,
                one.reward,
                one.dimensions,
                one.succeeded,
                one.untrained,
                one.failure,
            ),
            "calls": [{name: getattr(call, name) for name in type(call).__slots__} for call in one.transitions],
        }
        for one in group.trajectories
    ]


def test_a_group_travels_whole() -> None:
    back = decode_group(encode_group(GROUP))
    assert back.task_id == GROUP.task_id
    assert seen(back) == seen(GROUP)


async def test_a_group_that_is_long_in_coming_is_asked_for_again_and_run_once() -> None:
    run = Run()
    async with collecting(run) as (_, driver):
        waiting = asyncio.create_task(driver.rollouts(ASKED))
        while not run.asked:
            await asyncio.sleep(0)
        again = asyncio.create_task(driver.rollouts(msgspec.structs.replace(ASKED)))
        run.may.set()
        assert seen(await waiting) == seen(await again) == seen(GROUP)
        assert run.asked == [ASKED]


async def test_where_the_policy_is_served_reaches_the_run() -> None:
    run = Run()
    async with collecting(run) as (_, driver):
        await driver.serve_from(Replicas(("10.0.0.1:80", "10.0.0.2:80"), 7))
    assert run.served == [(("10.0.0.1:80", "10.0.0.2:80"), 7)]


async def test_that_weights_change_and_what_a_step_learns_from_reach_the_run() -> None:
    run = Run()
    used = TaskUsage(asked=ASKED, calls=2, tokens=9, calls_left_out={"empty prompt": 1})
    taken = StepTasks(step=2, tasks=(ASKED,), left_out=(msgspec.structs.replace(ASKED, place=1),))
    async with collecting(run) as (_, driver):
        await driver.pause(WeightChange(8))
        await driver.used(used)
        await driver.taken(taken)
    assert run.heard == [8, used, taken]


async def test_rollouts_that_cannot_be_run_end_the_run_with_their_reason() -> None:
    run = Run(RewardError("the reward is not a number"))
    run.may.set()
    async with collecting(run) as (served, driver):
        with pytest.raises(TrainingError, match="503: the run has ended"):
            await driver.rollouts(ASKED)
        with pytest.raises(RewardError, match="not a number"):
            await served.failure


async def test_a_replica_that_cannot_serve_ends_the_run_with_its_reason() -> None:
    async with collecting(Run(EngineError("http://10.0.0.1:80 is lost"))) as (served, driver):
        with pytest.raises(TrainingError, match="503: the run has ended"):
            await driver.serve_from(Replicas(("10.0.0.1:80",), 7))
        with pytest.raises(EngineError, match="is lost"):
            await served.failure


async def test_rollouts_that_verl_cannot_be_given_end_the_run_with_the_reason() -> None:
    async with collecting(Run()) as (served, driver):
        await driver.failed(FailedPrompts("its queue does not answer"))
        await driver.failed(FailedPrompts("neither does this"))
        with pytest.raises(TrainingError, match=r"^its queue does not answer$"):
            await served.failure


async def test_a_batch_that_teaches_nothing_ends_the_run_as_something_to_mend() -> None:
    async with collecting(Run()) as (served, driver):
        await driver.failed(FailedPrompts("no call of its 4 tasks can be trained on", to_mend=True))
        with pytest.raises(NothingToLearn, match=r"^no call of its 4 tasks"):
            await served.failure


async def test_what_should_be_known_is_told_of_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with collecting(Run()) as (served, driver):
        await driver.send_message(UserMessage("VERL waits for room"))
        assert not served.failure.done()
    assert "VERL waits for room" in caplog.messages


async def test_a_run_that_is_gone_is_told_of_after_a_while() -> None:
    driver = RunClient(RunEndpoint(url="http://127.0.0.1:9", token="t"), timeout=0.0)
    with pytest.raises(TrainingError, match="does not answer"):
        await driver.rollouts(ASKED)
    await driver.close()


async def test_what_is_not_understood_is_refused() -> None:
    async with collecting(Run()) as (_, driver):
        post = cast("Any", driver)._post
        with pytest.raises(TrainingError, match="400: not understood"):
            await post(ROLLOUTS, b"nothing")


async def test_what_earlier_steps_were_answered_is_forgotten() -> None:
    run = Run()
    run.may.set()
    async with collecting(run) as (served, driver):
        for step in (1, 2, 3):
            await driver.rollouts(msgspec.structs.replace(ASKED, step=step))
        kept = cast("SimpleNamespace", served)._tasks
        assert [asked.step for asked in kept] == [3]
