"""Another reward for the same answers: 1 for the right number in the right form, and up to 0.5 for a near one."""

import re
from typing import Any

ANSWER = re.compile(r"Answer: (-?\d{1,18})")


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Compare the agent's last message with `task["answer"]`: half the points, divided by 1 + the difference."""
    content = result["messages"][-1].content
    match = ANSWER.fullmatch(content) if isinstance(content, str) else None
    if match is None:
        return 0.0
    difference = abs(int(match[1]) - task["answer"])
    return 0.5 / (1 + difference) if difference else 1.0
