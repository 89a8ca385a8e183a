r"""A graph's stream that is left after its first update.
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
calls: 1
result: get_weather
tools: []
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
    inputs = {"messages": [{"role": "user", "content": task["question"]}]}
    for update in graph.stream(inputs, stream_mode="updates"):
        return update
