"""The rewards of the agents: 1 if the field of the answer is right, else 0."""

# The results of the frameworks are of types that are unknown here:
# pyright: reportUnknownVariableType=false

import operator
import re
from typing import Any

NUMBER = re.compile(r"\d+")
CALCULATION = re.compile(r"\s*(\d{1,6})\s*([-+*])\s*(\d{1,6})\s*")
OPERATIONS = {
    "addition": operator.add,
    "subtraction": operator.sub,
    "multiplication": operator.mul,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def answer(result: Any) -> Any:
    """Return the instance of the agent's class from `result`: what a framework returns, or the instance itself."""
    match result:
        case {"structured_response": found}:  # LangChain's `create_agent`
            return found
        case object(final_output=found) | object(pydantic=found):  # a result of the Agents SDK; of CrewAI
            return found
        case object(messages=[*_, object(content=found)]):  # AutoGen's
            return found
        case _:
            return result


def operation(task: dict[str, Any], result: Any) -> float:
    """Apply the operation in `result`, an instance of the agent's class, to the two numbers of the question."""
    first, second = sorted(map(int, NUMBER.findall(task["question"])), reverse=True)
    return float(OPERATIONS[result.operation](first, second) == task["answer"])


def calculation(task: dict[str, Any], result: Any) -> float:
    """Compute the expression in the answer; None is an answer that was cut."""
    found = None if result is None else CALCULATION.fullmatch(answer(result).expression)
    if found is None:
        return 0.0
    first, sign, second = found.groups()
    return float(OPERATIONS[sign](int(first), int(second)) == task["answer"])


def sums(task: dict[str, Any], result: Any) -> float:
    """Compare the result in the answer with the task's."""
    return float(answer(result).result == task["answer"])
