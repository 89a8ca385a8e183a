"""A calculator agent whose system prompt is a prompt template."""

import ast
import json
import re
from typing import Any
from urllib.request import Request, urlopen

import leyden.core as agl

ROUNDS = 3
"""Most model calls of a rollout."""
ANSWER = re.compile(r"Answer: (-?\d{1,18})")
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
Message = dict[str, Any]


@agl.rollout
def agent(task: dict[str, Any], llm: agl.LLM, prompt_template: agl.PromptTemplate) -> tuple[float, str]:
    """Answer the question, and return the reward with the reason for it."""
    messages: list[Message] = [
        {"role": "system", "content": prompt_template.format()},
        {"role": "user", "content": task["question"]},
    ]
    answer: Message = {}
    for _ in range(ROUNDS):
        answer = complete(llm, messages)
        calls: list[Message] = answer.get("tool_calls") or []
        if not calls:
            break
        messages += [answer, *({"role": "tool", "tool_call_id": call["id"], "content": result(call)} for call in calls)]
    found = ANSWER.fullmatch(answer.get("content") or "")
    if found is None:
        return 0.0, "the answer does not have the form 'Answer: <number>'"
    return (1.0, "right") if int(found[1]) == task["answer"] else (0.0, "the number is wrong")


def complete(llm: agl.LLM, messages: list[Message]) -> Message:
    """Return the model's answer. An endpoint samples as a policy does in training."""
    body = {"model": llm.model, "messages": messages, "tools": [TOOL], "temperature": 1.0}
    request = Request(f"{llm.get_base_url()}/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def result(call: Message) -> str:
    """Return the result of a call of the calculator."""
    try:
        expression = json.loads(call["function"]["arguments"])["expression"]
    except (ValueError, KeyError, TypeError):
        return "error: the call has no expression"
    return calculated(str(expression))


def calculated(expression: str) -> str:
    """Return the value of an expression as text, or what is wrong with it."""
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError):
        return "error: only whole numbers, +, - and * are allowed"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case _:
            raise ValueError
