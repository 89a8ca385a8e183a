r"""A crew whose provider refuses the key: the error ends it.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - status: 401
    times: 3
calls: 0
raises: Incorrect API key provided.
"""

from crewai import LLM, Agent, Crew, Task

teller = Agent(
    role="Teller",
    goal="Tell",
    backstory="You tell.",
    llm=LLM(model="gpt-4o-mini", max_retries=0),
    max_retry_limit=2,
)
tale = Task(description="Tell me about {topic}.", expected_output="A tale.", agent=teller)
agent = Crew(agents=[teller], tasks=[tale])
