# pyright: basic
"""Two agents on one word problem: a planner says what to calculate, and a reporter says what came of it."""

import operator
import re

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import SecretStr

SYSTEM = SystemMessage("Use the calculator, then reply 'Answer: <number>'.")
CALCULATION = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    match = CALCULATION.fullmatch(expression)
    if match is None:
        return "error: expected two whole numbers and one of + - *"
    return str(OPERATIONS[match[2]](int(match[1]), int(match[3])))


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
).bind_tools([calculator])


async def planner(state: MessagesState):
    """Ask for a calculation, or answer at once."""
    return {"messages": [await model.ainvoke([SYSTEM, *state["messages"]])]}


async def reporter(state: MessagesState):
    """Read the result and answer."""
    return {"messages": [await model.ainvoke([SYSTEM, *state["messages"]])]}


def after_planner(state: MessagesState):
    """Calculate what was asked for; without a request there is nothing to report."""
    return "calculate" if getattr(state["messages"][-1], "tool_calls", None) else END


builder = StateGraph(MessagesState)
builder.add_node("planner", planner)
builder.add_node("calculate", ToolNode([calculator]))
builder.add_node("reporter", reporter)
builder.add_edge(START, "planner")
builder.add_conditional_edges("planner", after_planner, ["calculate", END])
builder.add_edge("calculate", "reporter")
builder.add_edge("reporter", END)
agent = builder.compile(name="team")
