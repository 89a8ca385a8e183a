r"""A node that interrupts for a person's approval, and the run resumed.
---
tasks:
  - question: Delete the lighthouses.
  - question: Delete the submarines.
model:
  - when: the (\w+)
    say: I shall delete \1.
calls: 1
result: ["I shall delete lighthouses. (yes)", "I shall delete submarines. (yes)"]
"""

from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

model = ChatOpenAI(model="gpt-4o-mini")


class State(TypedDict):
    question: str
    plan: str
    done: str


def plan(state: State):
    return {"plan": model.invoke(state["question"]).content}


def approve(state: State):
    answer = interrupt({"plan": state["plan"]})
    return {"done": f"{state['plan']} ({answer})"}


builder = StateGraph(State).add_node("plan", plan).add_node("approve", approve)
builder.add_edge(START, "plan").add_edge("plan", "approve")
graph = builder.compile(checkpointer=InMemorySaver())


def agent(task):
    config = {"configurable": {"thread_id": "approval"}}
    first = graph.invoke({"question": task["question"]}, config)
    assert first["__interrupt__"]
    return graph.invoke(Command(resume="yes"), config)["done"]
