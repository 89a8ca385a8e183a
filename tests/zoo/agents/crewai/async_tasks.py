r"""Two tasks that run at the same time by async_execution, and a third whose context they are.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: history of (\w+)
    say: The \1 are old.
  - when: future of (\w+)
    say: The \1 will stay.
  - seen: The (\w+) are old.*will stay
    say: Old \1 stay.
calls: 3
result: [Old lighthouses stay., Old submarines stay.]
agents: [Researcher, Futurist, Writer]
"""

from crewai import Agent, Crew, Task

researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm="gpt-4o-mini")
futurist = Agent(role="Futurist", goal="Make guesses", backstory="You look ahead.", llm="gpt-4o-mini")
writer = Agent(role="Writer", goal="Write", backstory="You write.", llm="gpt-4o-mini")
history = Task(
    description="Look at the history of {topic}.", expected_output="A fact.", agent=researcher, async_execution=True
)
future = Task(
    description="Look at the future of {topic}.", expected_output="A guess.", agent=futurist, async_execution=True
)
article = Task(description="Write an article.", expected_output="An article.", agent=writer, context=[history, future])
agent = Crew(agents=[researcher, futurist, writer], tasks=[history, future, article])
