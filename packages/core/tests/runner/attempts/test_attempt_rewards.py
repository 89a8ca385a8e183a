import asyncio
import re
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import RewardError, TaskError
from leyden.core.runner.adapters.builtin import FunctionAdapter
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.rollout_function import rollout
from leyden.core.runner.runner import Runner
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories
from leyden.core.testing.running import error_of, finished, patient_store, rewards_in, run_one, runner_config, running
from leyden.core.tracing.emit import emit_reward


async def echo(task: Any) -> Any:
    return task


class Scored(LitAgent[Any]):
    def __init__(self) -> None:
        self.calls = 0

    def rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        self.calls += 1
        assert self.calls == 1, "an agent remembers an earlier attempt"
        return task


@pytest.mark.parametrize(
    ("returned", "expected"), [(0.5, [0.5]), (0, [0.0]), (True, [1.0]), ({"a": 1.0, "b": 0.25}, [1.25]), (None, [])]
)
async def test_what_a_lit_agent_returns_is_its_reward(returned: Any, expected: list[float]) -> None:
    ended, spans = await run_one(Scored(), returned)
    assert ended.status == "succeeded"
    assert rewards_in(spans) == expected
    if isinstance(returned, dict):
        assert spans[-1].attributes[f"{semconv.REWARD_DIMENSION}b"] == 0.25


async def test_the_reward_gets_the_row_as_it_was_whatever_the_agent_made_of_it() -> None:
    """Agents that keep their state in what they are given would otherwise choose what they are scored against."""

    def agent(task: Any) -> Any:
        task["answer"] = "mine"
        task["more"].append(2)
        return task

    def reward(task: Any, result: Any) -> float:
        assert result == {"answer": "mine", "more": [1, 2]}
        return float(task == {"answer": "right", "more": [1]})

    ended, spans = await run_one(agent, {"answer": "right", "more": [1]}, reward=reward)
    assert ended.status == "succeeded"
    assert rewards_in(spans) == [1.0]


@pytest.mark.parametrize("returned", ["good", float("nan"), {"a": "b"}, [0.5]])
async def test_a_lit_agent_that_returns_no_reward_is_a_reward_error(returned: Any) -> None:
    ended, spans = await run_one(Scored(), returned)
    assert (ended.status, error_of(ended)["kind"]) == ("failed", "reward")
    assert "Scored returned" in error_of(ended)["message"]
    assert rewards_in(spans) == []


async def test_attempts_share_no_agent() -> None:
    store = MemoryStore()
    ids = [(await store.enqueue_rollout(1.0)).rollout_id for _ in range(6)]
    async with running(store, Scored()):
        assert {ended.status for ended in await finished(store, ids)} == {"succeeded"}


async def test_an_emitted_reward_counts() -> None:
    @rollout
    async def agent(task: Any) -> None:
        emit_reward(0.75)

    _, spans = await run_one(agent)
    assert rewards_in(spans) == [0.75]


async def test_spans_that_a_rollout_returns_are_stored_with_its_attempt() -> None:
    span = factories.span("mine", rollout_id="", attempt_id="", sequence_id=0, span_id="2" * 16)

    @rollout
    def agent(task: Any) -> list[Span]:
        return [span]

    ended, spans = await run_one(agent)
    assert [(s.name, s.attempt_id) for s in spans if s.name == "mine"] == [("mine", ended.attempt.attempt_id)]


async def test_a_mode_chooses_the_method() -> None:
    class Modal(LitAgent[Any]):
        async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

        async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            return 2.0

    for mode, expected in (("train", 1.0), ("val", 2.0), (None, 2.0)):
        _, spans = await run_one(Modal(), mode=mode)  # pyright: ignore[reportArgumentType] -- literals from a tuple
        assert rewards_in(spans) == [expected]


async def test_the_reward_function_scores_what_the_agent_returned() -> None:
    def agent(task: dict[str, int]) -> int:
        return task["x"] + 1

    async def reward(task: dict[str, int], result: int) -> dict[str, float]:
        return {"right": float(result == task["x"] + 1), "short": 0.5}

    ended, spans = await run_one(agent, {"x": 1}, reward=reward, reward_weights={"right": 0.9, "short": 0.1})
    assert ended.status == "succeeded"
    assert [span.name for span in spans] == [semconv.RESULT, semconv.REWARD]
    assert rewards_in(spans) == [pytest.approx(0.95)]


async def emits(task: Any) -> None:
    emit_reward(task)


@pytest.mark.parametrize("returned", [True, False])
async def test_weights_weigh_what_an_agent_returns_or_emits(returned: bool) -> None:
    parts, weights = {"right": 1.0, "short": 0.5}, {"right": 0.9, "short": 0.1}
    _, spans = await run_one(Scored() if returned else rollout(emits), parts, reward_weights=weights)
    assert rewards_in(spans)[-1] == pytest.approx(0.95)
    assert spans[-1].attributes[f"{semconv.REWARD_DIMENSION}short"] == 0.5


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"right": 1.0}, "'short' has a weight, but is no dimension"),
        (1.0, "1.0 .float., but weights are given for right, short"),
    ],
)
@pytest.mark.parametrize("returned", [True, False])
async def test_weights_that_do_not_fit_are_a_reward_error(returned: bool, parts: Any, message: str) -> None:
    weights = {"right": 0.9, "short": 0.1}
    ended, _ = await run_one(Scored() if returned else rollout(emits), parts, reward_weights=weights)
    assert error_of(ended)["kind"] == "reward"
    assert re.search(message, error_of(ended)["message"])


async def test_weights_make_no_reward_where_there_is_none() -> None:
    ended, spans = await run_one(rollout(echo_nothing), "x", reward_weights={"right": 0.9})
    assert ended.status == "succeeded"
    assert rewards_in(spans) == []


async def echo_nothing(task: Any) -> None:
    assert task == "x"


def raising(task: Any, result: Any) -> float:
    raise KeyError("answer")


def returning_none(task: Any, result: Any) -> Any:
    return None


@pytest.mark.parametrize(("reward", "message"), [(raising, "raised KeyError"), (returning_none, "returned None")])
async def test_a_reward_error_fails_the_attempt_and_says_so(reward: Any, message: str) -> None:
    ended, spans = await run_one(echo, "task", reward=reward)
    assert (ended.attempt.status, error_of(ended)["kind"]) == ("failed", "reward")
    assert message in error_of(ended)["message"]
    assert rewards_in(spans) == []


def test_a_reward_that_cannot_be_called_is_found_before_the_first_rollout() -> None:
    with pytest.raises(RewardError):
        Runner(MemoryStore(), AgentSource.of(echo), config=runner_config(reward="score"))


async def test_a_task_the_agent_cannot_take_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Any, agent: Any, task: Any) -> None:
        raise TaskError(f"the task has {sorted(task)}, not 'messages'")

    monkeypatch.setattr(FunctionAdapter, "check", check)
    ended, _ = await run_one(echo, {"question": 1})
    assert error_of(ended) == {
        "kind": "input",
        "type": "TaskError",
        "message": "the task has ['question'], not 'messages'",
    }


async def test_a_reward_that_hangs_is_a_timeout_beside_the_agents_result(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 600.0  # seconds; no machine is so busy that the agent, which returns at once, takes as long
    loop, late = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + late)

    async def reward(task: Any, result: Any) -> float:
        nonlocal late
        late = limit  # the limit is over now, for every timer of the loop
        await asyncio.Event().wait()
        return 1.0

    config = RolloutConfig(timeout_seconds=limit)
    ended, spans = await run_one(echo, "t", config=config, reward=reward, store=patient_store())
    assert ended.attempt.status == "timeout"
    assert error_of(ended)["message"] == f"no reward within {limit} s"
    assert [(span.name, span.attributes[semconv.RESULT]) for span in spans] == [(semconv.RESULT, "t")]
