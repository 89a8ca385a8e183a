r"""A hierarchical crew with a manager agent of one's own, made by a function.
---
run: make_crew
author: make_crew().kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Project Manager
    role: user
    when: report on (\w+)
    call: {name: ask_question_to_coworker, arguments: {question: 'What is new about \1?', context: 'A report.', coworker: Researcher}}
  - system: You are Researcher
    when: new about (\w+)
    say: All \1 are automatic now.
  - system: Project Manager
    seen: All (\w+) are automatic
    say: Report on \1, they are automatic.
calls: 3
result: ["Report on lighthouses", "Report on submarines"]
agents: [Project Manager, Researcher]
"""

from crewai import Agent, Crew, Process, Task


def make_crew():
    manager = Agent(
        role="Project Manager",
        goal="Manage the crew and get the work done",
        backstory="You are an experienced manager.",
        allow_delegation=True,
        llm="gpt-4o-mini",
    )
    researcher = Agent(role="Researcher", goal="Find news", backstory="You read papers.", llm="gpt-4o-mini")
    report = Task(description="Make a report on {topic}.", expected_output="A report.")
    return Crew(agents=[researcher], tasks=[report], manager_agent=manager, process=Process.hierarchical)
