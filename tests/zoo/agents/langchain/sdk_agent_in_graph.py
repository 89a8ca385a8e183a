r"""A graph whose node runs an agent of the OpenAI Agents SDK.
---
author: await agent.ainvoke(task)
tasks:
  - question: lighthouses
  - question: submarines
model:
  - system: historian
    when: (\w+)
    say: \1 are old
  - when: ^Title for (\w+)
    say: On \1
calls: 2
result: [On lighthouses, On submarines]
agents: [agent, Historian]
"""

from typing import TypedDict

from agents import Agent, Runner
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

model = ChatOpenAI(model="gpt-4o-mini")
historian = Agent(name="Historian", instructions="You are a historian.", model="gpt-4o-mini")


class State(TypedDict):
    question: str
    text: str
    title: str


async def research(state: State):
    return {"text": (await Runner.run(historian, state["question"])).final_output}


async def title(state: State):
    return {"title": (await model.ainvoke(f"Title for {state['text']}")).content}


builder = StateGraph(State).add_node("research", research).add_node("headline", title)
builder.add_edge(START, "research").add_edge("research", "headline")
agent = builder.compile()
