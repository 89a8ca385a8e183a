# pyright: basic
"""A calculator over stdio that speaks as much of the Model Context Protocol as a client of one tool needs."""

import ast
import json
import sys
from typing import Any

TOOL = {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "inputSchema": {
        "type": "object",
        "properties": {"expression": {"description": "expression", "title": "Expression", "type": "string"}},
        "required": ["expression"],
    },
}


def evaluate(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers, +, - and *."""
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


def called(expression: str) -> str:
    try:
        return str(evaluate(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"error: {error}"


def result(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}}
        version = parameters["protocolVersion"]
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "c", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        text = called(str(parameters["arguments"].get("expression", "")))
        return {"content": [{"type": "text", "text": text}], "isError": text.startswith("error")}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = result(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}) + "\n")
            sys.stdout.flush()
