r"""A function without parameters that makes the agent.
---
author: 'make_agent().invoke({"messages": [{"role": "user", "content": task["question"]}]})'
run: make_agent

tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - role: tool
    when: (.*)
    say: I looked it up. \1
calls: 2
result: [sunny in Lisbon, sunny in Oslo]
tools: [get_weather]
agents: [weather]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


def make_agent():
    return create_agent(ChatOpenAI(model="gpt-4o-mini"), [get_weather], name="weather")
