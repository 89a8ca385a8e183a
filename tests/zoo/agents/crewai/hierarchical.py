r"""A hierarchical crew, whose manager is made of manager_llm and delegates the task.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Crew Manager
    role: user
    when: Write about (\w+)
    call: {name: delegate_work_to_coworker, arguments: {task: 'Write a line on \1.', context: 'It is for a poster on \1.', coworker: Writer}}
  - system: You are Writer
    when: a line on (\w+)
    say: Come and see \1.
  - system: Crew Manager
    seen: see (\w+)\.
    say: The poster reads, come and see \1.
calls: 3
result: ["reads, come and see lighthouses.", "reads, come and see submarines."]
agents: [Crew Manager, Writer]
tools: [delegate_work_to_coworker]
"""

from crewai import Agent, Crew, Process, Task

researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm="gpt-4o-mini")
writer = Agent(role="Writer", goal="Write lines", backstory="You write posters.", llm="gpt-4o-mini")
poster = Task(description="Write about {topic}.", expected_output="The poster's text.")
agent = Crew(agents=[researcher, writer], tasks=[poster], process=Process.hierarchical, manager_llm="gpt-4o")
