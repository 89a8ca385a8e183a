r"""create_react_agent of langgraph.prebuilt.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'

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
agents: [agent]
"""

import warnings

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    agent = create_react_agent(ChatOpenAI(model="gpt-4o-mini"), [get_weather], prompt="You are helpful.")
