r"""A lone Agent, run by its kickoff, with a tool.
---
author: 'agent.kickoff(task["question"])'
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - seen: weather of (\w+) is fine
    say: Fine in \1.
calls: 2
result: [Fine in Lisbon., Fine in Oslo.]
agents: [Assistant]
tools: [get_weather]
broken: the count of tool runs on CrewAI's console goes on from attempt to attempt, as a lone agent's share a process
seen: Tool Execution Completed (#
"""

from crewai import Agent
from crewai.tools import tool


@tool
def get_weather(city: str) -> str:
    """Get the weather."""
    return f"The weather of {city} is fine"


agent = Agent(role="Assistant", goal="Help", backstory="You help.", tools=[get_weather], llm="gpt-4o-mini")
