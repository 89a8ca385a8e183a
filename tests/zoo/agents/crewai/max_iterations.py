r"""An agent that is bounded by max_iter and must answer after its last tool call.
---
author: agent.kickoff(inputs=task)
tasks:
  - thing: Lighthouse
  - thing: Submarine
model:
  - when: Look for (\w+)
    call: {name: look, arguments: {thing: \1, place: one}}
    times: 1
  - seen: (\w+) is not in one
    call: {name: look, arguments: {thing: \1, place: two}}
    times: 1
  - seen: (\w+) is not in two
    say: \1 cannot be found.
calls: 3
result: [Lighthouse cannot be found., Submarine cannot be found.]
agents: [Seeker]
tools: [look]
"""

from crewai import Agent, Crew, Task
from crewai.tools import tool


@tool
def look(thing: str, place: str) -> str:
    """Look for a thing in a place."""
    return f"{thing} is not in {place}"


seeker = Agent(
    role="Seeker", goal="Find things", backstory="You seek.", tools=[look], max_iter=2, max_rpm=1000, llm="gpt-4o-mini"
)
search = Task(description="Look for {thing}.", expected_output="A place.", agent=seeker)
agent = Crew(agents=[seeker], tasks=[search])
