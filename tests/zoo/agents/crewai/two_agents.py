r"""A crew of a researcher and a writer, whose second task reads the first one's output.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Researcher
    seen: Find a fact about (\w+)
    say: |-
      I now can give a great answer
      Final Answer: Most \1 are older than they look.
  - system: Writer
    seen: Most (\w+) are
    say: |-
      I now can give a great answer
      Final Answer: A headline on \1.
calls: 2
result: [A headline on lighthouses., A headline on submarines.]
agents: [Researcher, Writer]
"""

from crewai import LLM, Agent, Crew, Task

llm = LLM(model="gpt-4o-mini")
researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm=llm)
writer = Agent(role="Writer", goal="Write headlines", backstory="You work for a paper.", llm=llm)
research = Task(description="Find a fact about {topic}.", expected_output="One fact.", agent=researcher)
write = Task(description="Write a headline.", expected_output="A headline.", agent=writer, context=[research])
agent = Crew(agents=[researcher, writer], tasks=[research, write])
