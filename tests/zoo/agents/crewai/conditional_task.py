r"""A ConditionalTask that is done for one input and left out for the other.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: events on lighthouses
    say: One of lighthouses.
  - when: events on submarines
    say: One of submarines. Two of submarines. Three of submarines.
  - when: Find more
    seen: One of (\w+)
    say: One, two and three of \1.
  - when: Summarise
    seen: of (lighthouses|submarines)
    say: Summary of \1.
calls: [3, 2]
result: [Summary of lighthouses., Summary of submarines.]
agents: [Researcher]
"""

from crewai import Agent, Crew, Task
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.task_output import TaskOutput


def is_data_missing(output: TaskOutput) -> bool:
    return output.raw.count(".") < 3


researcher = Agent(role="Researcher", goal="Find events", backstory="You like papers.", llm="gpt-4o-mini")
find = Task(description="Find events on {topic}.", expected_output="Three events.", agent=researcher)
more = ConditionalTask(
    description="Find more events.", expected_output="Three events.", condition=is_data_missing, agent=researcher
)
summary = Task(
    description="Summarise the events.", expected_output="A summary.", agent=researcher, context=[find, more]
)
agent = Crew(agents=[researcher], tasks=[find, more, summary])
