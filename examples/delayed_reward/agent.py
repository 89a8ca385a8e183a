# pyright: basic
"""A guide leads a trip: it packs one thing at the beginning, and chooses a path at each of four forks."""

from typing import Annotated, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import SecretStr

SYSTEM = SystemMessage("Lead the trip. Answer with one word.")
FORKS = 4
PACKED, PATH = 2, 1
"""Points for the thing that was needed, and for each good path."""


class Trip(TypedDict):
    """What the trip is, what it needs and which paths are good, which the guide does not see, and its points."""

    question: str
    needed: str
    paths: list[str]
    messages: Annotated[list[AnyMessage], add_messages]
    fork: int
    points: int


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=6,
)


def said(message: AnyMessage) -> str:
    """The word of an answer."""
    return str(message.content).strip().lower()


async def pack(state: Trip):
    """Choose what to pack, and find out whether it helps."""
    asked = HumanMessage(state["question"])
    answer = await model.ainvoke([SYSTEM, asked])
    helps = said(answer) == state["needed"]
    outcome = "It helps." if helps else "It is useless."
    following = HumanMessage(f"{outcome} Fork 1: left or right?")
    return {"messages": [asked, answer, following], "fork": 1, "points": PACKED * helps}


async def choose(state: Trip):
    """Choose a path at a fork, and find out where it goes."""
    answer = await model.ainvoke([SYSTEM, *state["messages"]])
    fork = state["fork"]
    good = said(answer) == state["paths"][fork - 1]
    outcome = "Good path." if good else "Bad path."
    following = HumanMessage(f"{outcome} Fork {fork + 1}: left or right?" if fork < FORKS else f"{outcome} The end.")
    return {"messages": [answer, following], "fork": fork + 1, "points": state["points"] + PATH * good}


def goes_on(state: Trip):
    """Whether another fork comes."""
    return "choose" if state["fork"] <= FORKS else END


builder = StateGraph(Trip)
builder.add_node("pack", pack)
builder.add_node("choose", choose)
builder.add_edge(START, "pack")
builder.add_edge("pack", "choose")
builder.add_conditional_edges("choose", goes_on, ["choose", END])
agent = builder.compile(name="trip")
