r"""Two crews at the same time, by kickoff_async and akickoff.
---
run: main
author: asyncio.run(main(task))
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Poet
    when: on (\w+)
    say: O \1!
  - system: Engineer
    when: on (\w+)
    say: Steel \1.
calls: 2
result: ["O lighthouses! Steel lighthouses.", "O submarines! Steel submarines."]
agents: [Poet, Engineer]
"""

import asyncio

from crewai import Agent, Crew, Task


def crew_of(role):
    member = Agent(role=role, goal="Write a line", backstory=f"You are a {role}.", llm="gpt-4o-mini")
    line = Task(description="Write a line on {topic}.", expected_output="A line.", agent=member)
    return Crew(agents=[member], tasks=[line])


async def main(task):
    first, second = await asyncio.gather(
        crew_of("Poet").kickoff_async(inputs=task), crew_of("Engineer").akickoff(inputs=task)
    )
    return f"{first.raw} {second.raw}"
