"""The reward of one answer: 1 if it is the name of the colour, else 0."""

from typing import Any


def score(task: dict[str, Any], result: str) -> float:
    """Compare the chain's answer with the colour."""
    return float(result.strip().lower() == task["answer"])
