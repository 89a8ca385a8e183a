r"""A graph whose nodes choose the next one with Command, and a reducer of its own.
---
author: agent.invoke(task)
tasks:
  - question: lighthouses
  - question: submarines
model:
  - when: ^Plan (\w+)
    say: expert
  - when: ^Expert on (\w+)
    say: \1 explained
calls: 2
result: [lighthouses explained, submarines explained]
agents: [agent]
"""

import operator
from typing import Annotated, Literal, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

model = ChatOpenAI(model="gpt-4o-mini")


class State(TypedDict):
    question: str
    notes: Annotated[list[str], operator.add]


def plan(state: State) -> Command[Literal["expert", "novice"]]:
    choice = model.invoke(f"Plan {state['question']}").content
    return Command(goto=choice, update={"notes": [f"sent to {choice}"]})


def expert(state: State) -> Command[Literal["__end__"]]:
    return Command(goto=END, update={"notes": [model.invoke(f"Expert on {state['question']}").content]})


def novice(state: State) -> Command[Literal["__end__"]]:
    return Command(goto=END, update={"notes": ["no idea"]})


agent = (
    StateGraph(State)
    .add_node("plan", plan)
    .add_node("expert", expert)
    .add_node("novice", novice)
    .add_edge(START, "plan")
    .compile()
)
