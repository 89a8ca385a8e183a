"""The reward of the team's answer, in two dimensions: the right number, and the form that was asked for."""

import re
from typing import Any

ANSWER = re.compile(r"Answer: (-?\d{1,18})")


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """1 for the right number in the right form, else 0."""
    return parts(task, result)["correct"]


def parts(task: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """`correct` and `form`, each 0 or 1; what is not in the form is not correct either."""
    messages = result["messages"]
    content = messages[-1].content if messages else None
    match = ANSWER.fullmatch(content) if isinstance(content, str) else None
    return {"correct": float(match is not None and int(match[1]) == task["answer"]), "form": float(match is not None)}
