# pyright: basic
"""A small agent that answers word problems with a calculator."""

import ast

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


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


async def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if len(expression) > 40:
        return "error: the expression is too long"
    try:
        return str(evaluate(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"error: {error}"


model_client = OpenAIChatCompletionClient(
    model="gpt-4.1-mini",
    api_key="sk-your-key-here",
    temperature=0,
)

agent = AssistantAgent(
    name="calculator_agent",
    model_client=model_client,
    tools=[calculator],
    system_message="Use the calculator, then reply 'Answer: <number>'.",
    max_tool_iterations=5,
)
