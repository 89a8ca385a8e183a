import sys
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import RewardError, TaskError, UnknownAgent, UsageError
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.user_code.agent_spec import TaskExample
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.testing.running import error_of, rewards_in, run_one, runner_config
from leyden.core.tracing.context import current_attempt

ROW = {"q": "2+2?", "a": "4"}


def asks(question: str) -> str:
    return question


def test_tasks_are_checked_against_the_agent_and_not_with_an_input_function() -> None:
    examples = [TaskExample(place="t.jsonl, line 1", task=ROW)]
    with pytest.raises(TaskError, match=r"t\.jsonl, line 1: the task has the keys q, a; asks\(question.*--input"):
        LoadedAgent.of(asks).check_tasks(examples)
    LoadedAgent.of(asks, input=ask).check_tasks(examples)


async def echo(task: Any) -> Any:
    return task


def ask(row: Any) -> Any:
    assert current_attempt() is None
    return {"question": f"Now: {row.pop('q')}"}


async def ask_later(row: Any) -> Any:
    return ask(row)


def looks_elsewhere(row: Any) -> Any:
    return row["question"]


def forgets(row: Any) -> None:
    row["question"] = row["q"]


def leaves(row: Any) -> None:
    sys.exit(2)


class Panic(BaseException):
    """As libraries in Rust raise it."""


async def panics(row: Any) -> None:
    raise Panic("at row 1")


def takes_none() -> int:
    return 1


def takes_two(row: Any, more: Any) -> int:
    return 1


class AsksLater:
    def __call__(self, row: Any) -> Any:
        return ask_later(row)


@pytest.mark.parametrize("make", [ask, ask_later, AsksLater()])
async def test_the_agent_gets_what_was_made_and_the_reward_gets_the_row(make: Any) -> None:
    seen: list[Any] = []

    def score(task: Any, result: Any) -> float:
        seen.append((task, result))
        return 1.0

    ended, spans = await run_one(echo, dict(ROW), input=make, reward=score)
    assert ended.status == "succeeded"
    assert seen == [(ROW, {"question": "Now: 2+2?"})]
    assert rewards_in(spans) == [1.0]
    assert ended.input == ROW


@pytest.mark.parametrize("made", ["a text", ["messages"], 7])
async def test_what_is_no_mapping_is_given_as_it_is(made: Any) -> None:
    seen: list[Any] = []
    await run_one(seen.append, "row", input=lambda row: made)  # pyright: ignore[reportUnknownLambdaType]
    assert seen == [made]
    assert type(seen[0]) is type(made)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (looks_elsewhere, r"--input looks_elsewhere raised KeyError: 'question' \(.*test_input_function.py, line"),
        (forgets, "--input forgets returned None instead of the agent's input"),
        (leaves, r"--input leaves raised SystemExit: 2 \(.*line"),
        (panics, r"--input panics raised Panic: at row 1 \(.*line"),
    ],
)
async def test_one_that_fails_is_an_input_failure_of_the_rollout(make: Any, says: str) -> None:
    def never(task: Any) -> None:
        raise AssertionError("the agent ran")

    ended, _ = await run_one(never, ROW, input=make)
    error = error_of(ended)
    assert (ended.status, error["kind"], error["type"]) == ("failed", "input", "TaskError")
    with pytest.raises(TaskError, match=says):
        raise TaskError(error["message"])
    assert error["message"].endswith("for task {'q': '2+2?', 'a': '4'}")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (7, r"--input must be a function of a task, not 7 \(int\)"),
        (takes_none, r"takes_none\(\).* cannot be called with one task"),
        (takes_two, r"takes_two\(row.*, more.*\).* cannot be called with one task"),
    ],
)
def test_what_cannot_make_an_input_is_refused_before_anything_runs(given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LoadedAgent.of(echo, input=given)


async def test_a_runner_refuses_it_too() -> None:
    with pytest.raises(UsageError, match="cannot be called with one task"):
        await run_one(echo, input=takes_none)
    assert runner_config(input=ask).input is ask


def test_what_goes_with_an_agent_is_loaded_by_import_string_or_taken_as_it_is(tmp_path: Path) -> None:
    class Notes(Hook):
        """Does nothing."""

    path = tmp_path / "given.py"
    path.write_text(
        "from leyden.core import Hook\n"
        "class Counts(Hook): pass\n"
        "counts, number = Counts(), 3\n"
        "def agent(task): return task\n"
        "def score(task, result): return 1.0\n"
        "def make(task): return task\n"
    )
    loaded = LoadedAgent.of(
        f"{path}:agent",
        f"{path}:score",
        input=f"{path}:make",
        hooks=[f"{path}:Counts", f"{path}:counts", Notes, Notes()],
    )
    assert loaded.reward is not None and loaded.input is not None
    assert (loaded.source.agent(7), loaded.reward(1, 2), loaded.input("x")) == (7, 1.0, "x")
    assert [type(hook).__name__ for hook in loaded.hooks] == ["Counts", "Counts", "Notes", "Notes"]
    assert LoadedAgent.of(("echo", "hi")).source.adapter.name == "command"
    with pytest.raises(UsageError, match=r"given\.py:number is of type int, not a Hook"):
        LoadedAgent.of(echo, hooks=[f"{path}:number"])
    with pytest.raises(UsageError, match="a hook is of type int, not a Hook"):
        LoadedAgent.of(echo, hooks=[3])
    with pytest.raises(RewardError, match="make"):
        LoadedAgent.of(echo, f"{path}:make")
    with pytest.raises(UnknownAgent):
        LoadedAgent.of(f"{path}:number")
