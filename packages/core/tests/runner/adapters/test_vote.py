"""A vote over the runs of another agent, without a model."""

from collections.abc import Iterator
from typing import Any

import pytest

from leyden.core.errors import LeydenError, TaskError, UsageError
from leyden.core.runner.adapters.finding import AgentSource, find_adapter
from leyden.core.runner.adapters.vote import Vote


def scripted(*outcomes: Any) -> Any:
    """An agent whose runs have these outcomes, in order; an exception is raised."""
    left: Iterator[Any] = iter(outcomes)

    def agent(task: dict[str, Any]) -> Any:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return {"task": task["question"], "text": outcome}

    return agent


def number(result: dict[str, Any]) -> int | None:
    return int(result["text"]) if result["text"].strip().isdigit() else None


async def voted(*outcomes: Any) -> Any:
    vote = Vote(agent=scripted(*outcomes), samples=len(outcomes), answer=number)
    adapter = find_adapter(vote)
    result = await adapter.run(adapter.fresh(vote), {"question": "q"}, {})
    return result["text"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (("1", "2", "2"), "2"),
        (("3", " 3", "1"), "3"),
        (("1", "2", "2", "1"), "1"),
        (("none", "2", "none"), "2"),
        (("none", "nothing"), "nothing"),
        ((RuntimeError("no"), "4", RuntimeError("no")), "4"),
        ((RuntimeError("no"), "none"), "none"),
    ],
)
async def test_the_answer_of_most_runs_wins_and_its_first_result_is_returned(
    outcomes: tuple[Any, ...], expected: str
) -> None:
    assert await voted(*outcomes) == expected


async def test_if_all_runs_raise_the_last_error_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="second"):
        await voted(RuntimeError("first"), RuntimeError("second"))
    assert "run 1 of 2 does not vote: RuntimeError: first" in caplog.text


async def test_errors_of_leyden_end_the_vote() -> None:
    with pytest.raises(LeydenError, match="lost"):
        await voted("1", LeydenError("lost"), "1")


async def test_each_run_has_a_fresh_agent_and_the_agents_task_is_checked() -> None:
    class Counting:
        def __init__(self) -> None:
            self.runs = 0

        def run(self, question: str) -> dict[str, str]:
            self.runs += 1
            return {"text": str(self.runs)}

    agent = Counting()
    vote = Vote(agent=agent, samples=3, answer=number)
    source = AgentSource.of(vote)
    assert source.adapter.name == "vote"
    assert (await source.adapter.run(source.fresh(), {"question": "q"}, {}))["text"] == "1"
    with pytest.raises(TaskError):
        source.adapter.check(vote, {"a": 1, "b": 2})


def test_a_vote_of_no_sample_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 sample, got 0"):
        Vote(agent=scripted(), samples=0, answer=number)
