r"""A crew with planning: a planner looks at all tasks first, and its plan is added to them.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Task Execution Planner
    seen: fact about (\w+)
    say: '{"list_of_plans_per_task": [{"task_number": 1, "task": "Find a fact about \1.", "plan": "Think of \1, then say it."}]}'
  - system: Researcher
    when: then say it
    seen: Think of (\w+)
    say: As planned, \1 are old.
calls: 2
result: ["As planned, lighthouses are old.", "As planned, submarines are old."]
"""

from crewai import Agent, Crew, Task

researcher = Agent(role="Researcher", goal="Find facts", backstory="You like libraries.", llm="gpt-4o-mini")
research = Task(description="Find a fact about {topic}.", expected_output="One fact.", agent=researcher)
agent = Crew(agents=[researcher], tasks=[research], planning=True, planning_llm="gpt-4o-mini")
