r"""Tokens of stream_mode messages, and updates.
---
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
result: model
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


graph = create_agent(ChatOpenAI(model="gpt-4o-mini"), [get_weather], name="weather")


def agent(task):
    seen = []
    inputs = {"messages": [{"role": "user", "content": task["question"]}]}
    for mode, part in graph.stream(inputs, stream_mode=["updates", "messages"]):
        if mode == "messages":
            message, metadata = part
            seen.append((metadata["langgraph_node"], message.content))
        else:
            seen.append(("update", sorted(part)))
    return seen
