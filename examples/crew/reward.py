"""The reward of a crew's work, in three dimensions: the form of its statement, its efficiency, and its goal.

`parts` returns the dimensions, each from 0 to 1, to be weighted with `--reward-weight`. `score` weights them itself.
"""

import re
from typing import Any

STATEMENT = re.compile(r"Finding: ((?:north|south|east) -?\d{1,3})")
WEIGHTS = {"form": 0.3, "efficiency": 0.4, "goal": 0.3}
NEEDED = 2
"""Tool calls that every question needs: one to look the figures up, and one to pick among them."""


def score(task: dict[str, Any], result: Any) -> float:
    """Return the weighted sum of the dimensions."""
    return sum(WEIGHTS[name] * part for name, part in parts(task, result).items())


def parts(task: dict[str, Any], result: Any) -> dict[str, float]:
    """Compare the crew's statement with `task["answer"]`, and count the tool calls of its agents.

    - `form`: 1 if the statement is `Finding: <region> <figure>` and nothing else, otherwise 0.
    - `efficiency`: 0 if the researcher or the analyst called no tool; otherwise 2 / (number of tool calls).
    - `goal`: 1 if the statement has the form, and region and figure are right, otherwise 0.
    """
    match = STATEMENT.fullmatch(result.raw)
    calls = [tool_calls(output.messages) for output in result.tasks_output[:NEEDED]]
    return {
        "form": float(match is not None),
        "efficiency": NEEDED / sum(calls) if all(calls) else 0.0,
        "goal": float(match is not None and match[1] == task["answer"]),
    }


def tool_calls(messages: list[Any]) -> int:
    """Return how many tool calls the messages of a task contain."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)
