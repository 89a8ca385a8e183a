"""The reward of one answer: 0.8 for the right number, and 0.2 more if it is a number and nothing else."""

import re
from typing import Any

NUMBER = re.compile(r"-?\d+")


def score(task: dict[str, Any], result: str) -> float:
    """Compare the last number of the chain's answer with the sum."""
    numbers = NUMBER.findall(result)
    is_right = bool(numbers) and numbers[-1] == str(task["answer"])
    is_bare = NUMBER.fullmatch(result.strip()) is not None
    return 0.8 * is_right + 0.2 * is_bare
