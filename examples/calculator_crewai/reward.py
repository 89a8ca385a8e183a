"""The reward of one answer: 1 for the right number in the form the system prompt asks for, else 0."""

import re
from typing import Any

ANSWER = re.compile(r"Answer: (-?\d{1,18})")


def score(task: dict[str, Any], result: Any) -> float:
    """Compare what the agent said last with `task["answer"]`."""
    said = result.raw
    match = ANSWER.fullmatch(said) if isinstance(said, str) else None
    return 1.0 if match and int(match[1]) == task["answer"] else 0.0
