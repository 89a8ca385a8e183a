r"""ChatOpenAI over the Responses API, with a tool.
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
agents: [weather]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


agent = create_agent(ChatOpenAI(model="gpt-4.1-mini", use_responses_api=True), [get_weather], name="weather")
