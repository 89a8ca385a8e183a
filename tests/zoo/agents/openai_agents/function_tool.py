r"""An Agent with a function tool, run by Runner.
---
author: 'await Runner.run(agent, task["question"])'
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
result: [The weather in Lisbon is sunny., The weather in Oslo is sunny.]
agents: [Assistant]
tools: [get_weather]
"""

from agents import Agent, Runner, function_tool


@function_tool
def get_weather(city: str) -> str:
    """Get the weather for a given city."""
    return f"The weather in {city} is sunny."


agent = Agent(name="Assistant", instructions="You are a helpful assistant", tools=[get_weather])
