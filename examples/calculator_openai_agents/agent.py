# pyright: basic
"""A small agent that answers word problems with a calculator."""

import ast

from agents import Agent, ModelSettings, function_tool, set_default_openai_key

set_default_openai_key("sk-your-key-here")


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


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if len(expression) > 40:
        return "error: the expression is too long"
    try:
        return str(evaluate(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"error: {error}"


agent = Agent(
    name="calculator_agent",
    model="gpt-4.1-mini",
    model_settings=ModelSettings(temperature=0),
    instructions="Use the calculator, then reply 'Answer: <number>'.",
    tools=[calculator],
)
