"""`Trainer.check` with agents that are objects of this process, which learning in a process of its own asks to run."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from leyden.core.errors import UsageError
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.trainer import Trainer

TASKS = [{"question": f"one and {word}?"} for word in ("two", "one", "calculator", "naive")]


def asker(greeting: str, asked: list[Any] | None = None) -> Callable[[Any], Awaitable[str]]:
    """An agent that no import string could name; given a list, it notes there what it was asked."""

    async def ask(task: Any) -> str:
        if asked is not None:
            asked.append(task)
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                "https://api.openai.com/v1/chat/completions",
                headers={"authorization": "Bearer sk-not-a-real-key"},
                json={
                    "model": "gpt",
                    "messages": [{"role": "user", "content": f"{greeting} {task['question']}"}],
                    "max_tokens": 6,
                },
            )
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]["content"]

    return ask


def even(task: Any, result: str) -> float:
    """A reward that about half of all random answers earn."""
    return float(sum(result.encode()) % 2)


def constant(task: Any, result: str) -> float:
    return 0.5


def broken(task: Any, result: str) -> float:
    raise KeyError("label")


def trainer(policy: Path, runs: Path, **changes: Any) -> Trainer:
    return Trainer(policy=policy, runs=runs, tasks_per_step=4, group_size=4, quiet=True, **changes)


def test_a_live_agent_is_proven_to_learn_and_nothing_is_kept(policy: Path, tmp_path: Path) -> None:
    asked: list[Any] = []
    report = trainer(policy, tmp_path, isolation="shared").check(asker("two", asked), TASKS, even)
    assert [result.name for result in report.results if result.status != "ok"] == []
    assert "all rollouts share asked (list), which ask()" in report.result("isolation").seen
    assert report.proven
    assert (report.rollouts, len(asked)) == (16, 16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_fault_is_named_as_for_an_import_string(policy: Path, tmp_path: Path) -> None:
    report = trainer(policy, tmp_path, select={"agent_match": "editor"}).check(asker("one"), TASKS, constant)
    assert [failure.name for failure in report.failures] == ["selection"]
    assert "'editor' matches none" in report.result("selection").seen
    (kept,) = tmp_path.iterdir()
    assert report.kept == str(kept)
    assert "selection: " in str(RunFolder(kept).failure())


@pytest.mark.long
def test_what_must_be_mended_at_once_is_raised_here(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="KeyError") as caught:
        trainer(policy, tmp_path).check(asker("one"), TASKS, broken)
    assert "\n" not in str(caught.value)
    (kept,) = tmp_path.iterdir()
    assert RunFolder(kept).failure() == str(caught.value)
