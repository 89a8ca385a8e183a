r"""A sequential crew whose writer may delegate to a coworker.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: You are Writer
    role: user
    when: headline on (\w+)
    call: {name: delegate_work_to_coworker, arguments: {task: 'Find a fact on \1.', context: 'A headline on \1 is wanted.', coworker: Researcher}}
  - system: You are Researcher
    when: fact on (\w+)
    say: There are many \1.
  - system: You are Writer
    seen: There are many (\w+)
    say: So many \1!
calls: 3
result: [So many lighthouses!, So many submarines!]
agents: [Researcher, Writer]
"""

from crewai import Agent, Crew, Task

researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm="gpt-4o-mini")
writer = Agent(
    role="Writer", goal="Write headlines", backstory="You work for a paper.", allow_delegation=True, llm="gpt-4o-mini"
)
headline = Task(description="Write a headline on {topic}.", expected_output="A headline.", agent=writer)
agent = Crew(agents=[researcher, writer], tasks=[headline])
