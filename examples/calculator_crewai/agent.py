# pyright: basic
"""A crew of one that answers word problems with a calculator."""

import ast

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


def evaluate(node: ast.expr) -> int:
    """Value of a parsed expression; anything but whole numbers, +, - and * is refused."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return evaluate(left) + evaluate(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return evaluate(left) - evaluate(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return evaluate(left) * evaluate(right)
    raise ValueError("only whole numbers, +, - and * are allowed")


@tool("calculator")
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if len(expression) > 40:
        return "error: the expression is too long"
    try:
        return str(evaluate(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"error: {error}"


calculator_agent = Agent(
    role="calculator_agent",
    goal="Use the calculator, then reply 'Answer: <number>'.",
    backstory="You are good at word problems.",
    llm=LLM(model="gpt-4.1-mini", api_key="sk-your-key-here", temperature=0),
    tools=[calculator],
)

crew = Crew(
    agents=[calculator_agent],
    tasks=[Task(description="{question}", expected_output="Answer: <number>", agent=calculator_agent)],
)
