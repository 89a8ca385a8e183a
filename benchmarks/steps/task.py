"""The task that both sides learn: to ask the calculator for the right expression, in one call. Needs no library."""

import re

SYSTEM = "Use the calculator, then reply 'Answer: <number>'."
MAX_TOKENS = 32
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "type": "object",
        },
    },
}
"""As LangChain describes the example's tool: what the policy was made for."""
_EXPRESSION = re.compile(r'"expression": ?"(\d{1,4}) ?([-+*]) ?(\d{1,4})"')
_OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def messages_of(question: str) -> list[dict[str, str]]:
    """The conversation that is sent."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def reward_of(written: str, answer: int) -> float:
    """1 if the expression that was asked for has the right value."""
    match = _EXPRESSION.search(written)
    return float(match is not None and _OPERATIONS[match[2]](int(match[1]), int(match[3])) == answer)
