"""The reward: 1 if the last query returns what the gold query returns, as Spider's evaluation defines it, else 0."""

from pathlib import Path
from typing import Any

from execution_match import same_result

FOLDER = Path(__file__).parent


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Compare the graph's last query (`result["query"]`) with `task["gold"]`."""
    return float(same_result(FOLDER / task["database"], result.get("query", ""), task["gold"]))
