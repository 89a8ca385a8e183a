"""The reward of a trip, known only at its end: 1 for at least four of the six points, else 0."""

from typing import Any

ENOUGH = 4


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Compare the points of the trip (`result` is the graph's last state) with what a success needs."""
    return 1.0 if result["points"] >= ENOUGH else 0.0
