r"""A crew of one agent with a tool made by @tool, which it calls twice at once.
---
author: agent.kickoff(inputs=task)
tasks:
  - city: Lisbon
  - city: Naples
model:
  - role: user
    when: weather in (\w+)
    calls:
      - {name: get_weather, arguments: {city: \1}}
      - {name: get_weather, arguments: {city: 'near \1'}}
  - seen: weather of near (\w+) is fine
    say: It is fine in and near \1.
calls: 2
result: [It is fine in and near Lisbon., It is fine in and near Naples.]
agents: [Weather Reporter]
tools: [get_weather]
"""

from crewai import Agent, Crew, Process, Task
from crewai.tools import tool


@tool("get_weather")
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"The weather of {city} is fine."


reporter = Agent(
    role="Weather Reporter",
    goal="Report the weather",
    backstory="You have looked at clouds for years.",
    tools=[get_weather],
    llm="gpt-4o-mini",
)
report = Task(
    description="Report the weather in {city}.", expected_output="One sentence on the weather.", agent=reporter
)
agent = Crew(agents=[reporter], tasks=[report], process=Process.sequential)
