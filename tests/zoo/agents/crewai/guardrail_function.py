r"""A task with a guardrail function that sends the first answer back.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - seen: about (\w+)\..*too long
    say: Old \1.
  - when: about (\w+)
    say: All of the \1 that I have ever heard of are rather old.
calls: 2
result: [Old lighthouses., Old submarines.]
agents: [Writer]
"""

from typing import Any

from crewai import Agent, Crew, Task, TaskOutput


def at_most_three_words(result: TaskOutput) -> tuple[bool, Any]:
    if len(result.raw.split()) > 3:
        return (False, "It is too long, use three words.")
    return (True, result.raw.strip())


writer = Agent(role="Writer", goal="Write", backstory="You write.", llm="gpt-4o-mini")
write = Task(
    description="Write about {topic}.",
    expected_output="Three words.",
    agent=writer,
    guardrail=at_most_three_words,
    guardrail_max_retries=2,
)
agent = Crew(agents=[writer], tasks=[write])
