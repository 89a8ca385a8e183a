"""The reward of a walk: 1 if it reached the goal within its budget of moves, else 0."""

from typing import Any


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Compare where the walk ended (`result` is the graph's last state) with the goal."""
    return 1.0 if result["at"] == task["goal"] and result["moves"] <= task["budget"] else 0.0
