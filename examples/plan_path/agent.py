# pyright: basic
"""Two agents on a map: a planner says where to go next, and a walker carries it out with a tool."""

from typing import Annotated, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode
from pydantic import SecretStr

SIZE = 4
STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
PLANNER = SystemMessage("Plan the next step to the goal: Go north, east, south or west.")
WALKER = SystemMessage("Carry out the plan with the tool.")


class Walk(TypedDict):
    """The map, the way so far, and the walker's last conversation."""

    start: str
    goal: str
    walls: list[str]
    budget: int
    at: str
    moves: int
    messages: Annotated[list[AnyMessage], add_messages]


def beyond(cell: str, direction: str) -> str:
    """The cell next to another, such as b2 north of b1; it may be off the map."""
    east, north = STEPS[direction]
    return f"{chr(ord(cell[0]) + east)}{int(cell[1:]) + north}"


def is_open(cell: str, walls: list[str]) -> bool:
    """Whether a cell is on the map and no wall."""
    return (
        "a" <= cell[0] < chr(ord("a") + SIZE)
        and cell[1:].isdigit()
        and 1 <= int(cell[1:]) <= SIZE
        and cell not in walls
    )


@tool
def move(direction: str, state: Annotated[dict, InjectedState]) -> str:
    """Move one cell."""
    if direction not in STEPS:
        return f"no direction: still at {state['at']}"
    cell = beyond(state["at"], direction)
    return f"at {cell}" if is_open(cell, state["walls"]) else f"wall: still at {state['at']}"


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=120,
)
with_tools = model.bind_tools([move])


def begin(state: Walk):
    """Stand at the start."""
    return {"at": state["start"], "moves": 0}


async def planner(state: Walk):
    """Say where to go next."""
    free = [direction for direction in STEPS if is_open(beyond(state["at"], direction), state["walls"])]
    seen = f"Walls: {', '.join(state['walls'])}. Goal: {state['goal']}. You: {state['at']}. Open: {', '.join(free)}."
    plan = await model.ainvoke([PLANNER, HumanMessage(seen)])
    return {"messages": [plan]}


async def walker(state: Walk):
    """Carry out the plan."""
    plan = HumanMessage(str(state["messages"][-1].content))
    call = await with_tools.ainvoke([WALKER, plan])
    return {"messages": [call], "moves": state["moves"] + 1}


def arrive(state: Walk):
    """Read from the tool's answer where the walker is."""
    return {"at": str(state["messages"][-1].content).split()[-1]}


def after_walker(state: Walk):
    """Run the tool; a walker that calls none has used up a move."""
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else goes_on(state)


def goes_on(state: Walk):
    """Whether another step comes."""
    return END if state["at"] == state["goal"] or state["moves"] >= state["budget"] else "planner"


builder = StateGraph(Walk)
builder.add_node("begin", begin)
builder.add_node("planner", planner)
builder.add_node("walker", walker)
builder.add_node("tools", ToolNode([move]))
builder.add_node("arrive", arrive)
builder.add_edge(START, "begin")
builder.add_edge("begin", "planner")
builder.add_edge("planner", "walker")
builder.add_conditional_edges("walker", after_walker, ["tools", "planner", END])
builder.add_edge("tools", "arrive")
builder.add_conditional_edges("arrive", goes_on, ["planner", END])
agent = builder.compile(name="walk")
