r"""A function that runs a crew at module level for each of several inputs, by kickoff_for_each.
---
tasks:
  - cities: [Lisbon, Porto]
  - cities: [Naples, Genoa]
model:
  - when: sight of (\w+)
    say: See the port of \1.
calls: 2
result: [port of Porto., port of Genoa.]
agents: [Guide]
"""

from crewai import Agent, Crew, Task

guide = Agent(role="Guide", goal="Guide", backstory="You walk.", llm="gpt-4o-mini")
sight = Task(description="Name a sight of {city}.", expected_output="A sight.", agent=guide)
crew = Crew(agents=[guide], tasks=[sight])


def agent(task):
    outputs = crew.kickoff_for_each(inputs=[{"city": city} for city in task["cities"]])
    return [output.raw for output in outputs]
