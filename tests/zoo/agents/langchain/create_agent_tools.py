r"""An agent made by create_agent with a tool, as the quickstart has it.
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
result: ["I looked it up. It's always sunny in Lisbon!", "I looked it up. It's always sunny in Oslo!"]
agents: [weather]
tools: [get_weather]
"""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


agent = create_agent(
    model=ChatOpenAI(model="gpt-4.1-mini", temperature=0),
    tools=[get_weather],
    system_prompt="You are a helpful assistant",
    name="weather",
)
