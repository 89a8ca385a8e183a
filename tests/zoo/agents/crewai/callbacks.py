r"""A crew with callbacks for steps and tasks, and functions before and after its kickoff.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: fact about (\w+), please
    say: Most \1 are old.
calls: 1
result: [Most lighthouses are old., Most submarines are old.]
agents: [Researcher]
state: events
"""

from crewai import Agent, Crew, Task

events = []


def before(inputs):
    events.append(f"before {sorted(inputs)}")
    return {**inputs, "polite": "please"}


def after(output):
    events.append(f"after {output.raw}")
    return output


researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm="gpt-4o-mini")
research = Task(
    description="Find a fact about {topic}, {polite}.",
    expected_output="One fact.",
    agent=researcher,
    callback=lambda output: events.append(f"task {output.raw}"),
)
agent = Crew(
    agents=[researcher],
    tasks=[research],
    step_callback=lambda step: events.append(f"step {type(step).__name__}"),
    task_callback=lambda output: events.append(f"crew's task {output.raw}"),
    before_kickoff_callbacks=[before],
    after_kickoff_callbacks=[after],
)
