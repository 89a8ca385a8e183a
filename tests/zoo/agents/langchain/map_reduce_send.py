r"""Map and reduce with Send.
---
author: agent.invoke(task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: Three aspects of (\w+)
    say: history, looks, use of \1
  - when: ^Write about (.*)\.$
    say: Text on \1
  - when: ^Best of
    seen: use of (\w+)
    say: The use of \1 it is.
calls: 5
result: [The use of lighthouses it is., The use of submarines it is.]
agents: [agent]
"""

import operator
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

model = ChatOpenAI(model="gpt-4o-mini")


class State(TypedDict):
    topic: str
    aspects: list[str]
    texts: Annotated[list[str], operator.add]
    best: str


class Part(TypedDict):
    aspect: str


def plan(state: State):
    answer = model.invoke(f"Three aspects of {state['topic']}")
    return {"aspects": answer.content.split(", ")}


def each(state: State):
    return [Send("write", {"aspect": aspect}) for aspect in state["aspects"]]


def write(state: Part):
    return {"texts": [model.invoke(f"Write about {state['aspect']}.").content]}


def choose(state: State):
    return {"best": model.invoke("Best of: " + " / ".join(sorted(state["texts"]))).content}


builder = StateGraph(State)
builder.add_node("plan", plan)
builder.add_node("write", write)
builder.add_node("choose", choose)
builder.add_edge(START, "plan")
builder.add_conditional_edges("plan", each, ["write"])
builder.add_edge("write", "choose")
builder.add_edge("choose", END)
agent = builder.compile()
