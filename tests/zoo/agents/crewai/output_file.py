r"""A task that writes its output to a file of a folder that it creates, named by an input.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: blog post about (\w+)
    say: '## About \1'
calls: 1
result: ["## About lighthouses", "## About submarines"]
agents: [Blogger]
state: sorted(path.read_text() for path in __import__("pathlib").Path("output").glob("*.md"))[:1] != []
"""

from crewai import Agent, Crew, Task

blogger = Agent(role="Blogger", goal="Write posts", backstory="You blog.", llm="gpt-4o-mini")
post = Task(
    description="Write a blog post about {topic}.",
    expected_output="A post in markdown.",
    agent=blogger,
    output_file="output/{topic}.md",
    create_directory=True,
    markdown=True,
)
agent = Crew(agents=[blogger], tasks=[post])
