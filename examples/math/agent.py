# pyright: basic
"""A small agent that solves word problems with a calculator, one calculation after the other."""

import ast
import re
from fractions import Fraction

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

LONGEST = 100  # characters; an expression of this length is at most 100 levels deep
LARGEST = 10**15
SYNTAX = re.compile(r"[\d.+\-*/() ]*", re.ASCII)


def evaluate(node: ast.expr) -> Fraction:
    """Exact value of a parsed expression; anything but numbers, +, -, * and / is refused."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return evaluate(left) + evaluate(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return evaluate(left) - evaluate(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return evaluate(left) * evaluate(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return evaluate(left) / evaluate(right)
    raise ValueError("only numbers, +, -, *, / and parentheses are allowed")


def shown(value: Fraction) -> str:
    """Value as text; a fraction is rounded to four decimals."""
    if abs(value) > LARGEST:
        raise ValueError("the result is too large")
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0").rstrip(".")


async def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if len(expression) > LONGEST:
        return "error: the expression is too long"
    if not SYNTAX.fullmatch(expression):
        return "error: only numbers, +, -, *, / and parentheses are allowed"
    try:
        return shown(evaluate(ast.parse(expression.strip(), mode="eval").body))
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError) as error:
        return f"error: {error}"


model_client = OpenAIChatCompletionClient(
    model="gpt-4.1-mini",
    api_key="sk-your-key-here",
    temperature=0,
)

agent = AssistantAgent(
    name="math_agent",
    model_client=model_client,
    tools=[calculator],
    system_message="Calculate step by step, then reply 'Answer: <number>'.",
    max_tool_iterations=8,
)
