r"""A graph inside a graph, with a state of its own.
---
author: agent.invoke(task)
tasks:
  - text: lighthouses
  - text: submarines
model:
  - when: ^Shorten (\w+)
    say: short \1
  - when: ^Translate (.*)
    say: \1 in French
calls: 2
result: [short lighthouses in French, short submarines in French]
agents: [inner, outer]
"""

from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

model = ChatOpenAI(model="gpt-4o-mini")


class Inner(TypedDict):
    draft: str


class Outer(TypedDict):
    text: str
    result: str


def shorten(state: Inner):
    return {"draft": model.invoke(f"Shorten {state['draft']}").content}


inner = StateGraph(Inner).add_node("shorten", shorten).add_edge(START, "shorten").compile(name="inner")


def prepare(state: Outer):
    return {"result": inner.invoke({"draft": state["text"]})["draft"]}


def translate(state: Outer):
    return {"result": model.invoke(f"Translate {state['result']}").content}


builder = StateGraph(Outer)
builder.add_node("prepare", prepare)
builder.add_node("translate", translate)
builder.add_edge(START, "prepare")
builder.add_edge("prepare", "translate")
agent = builder.compile(name="outer")
