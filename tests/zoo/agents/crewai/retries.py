r"""A crew whose provider is overloaded at first; the LLM tries again.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - status: 429
    times: 1
  - status: 500
    times: 1
  - when: about (\w+)
    say: Old \1.
calls: 1
result: [Old lighthouses., Old submarines.]
agents: [Teller]
"""

from crewai import LLM, Agent, Crew, Task

llm = LLM(model="gpt-4o-mini", max_retries=3, timeout=30)
teller = Agent(role="Teller", goal="Tell", backstory="You tell.", llm=llm)
tale = Task(description="Tell me about {topic}.", expected_output="A tale.", agent=teller)
agent = Crew(agents=[teller], tasks=[tale])
