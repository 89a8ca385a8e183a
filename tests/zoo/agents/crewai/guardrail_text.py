r"""A task whose guardrail is a sentence, which an LLM checks.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: You are Writer
    when: about (\w+)
    say: Old \1.
  - seen: Old (\w+)
    say: '{"valid": true, "feedback": null}'
calls: 2
result: [Old lighthouses., Old submarines.]
"""

from crewai import Agent, Crew, Task

writer = Agent(role="Writer", goal="Write", backstory="You write.", llm="gpt-4o-mini")
write = Task(
    description="Write about {topic}.",
    expected_output="Three words.",
    agent=writer,
    guardrail="The text has at most three words.",
)
agent = Crew(agents=[writer], tasks=[write])
