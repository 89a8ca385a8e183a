r"""A task whose output is a pydantic model, by output_pydantic.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - seen: title on (\w+)
    say: '{"title": "On \1", "length": 3}'
calls: 1
result: [On lighthouses, On submarines]
"""

from crewai import Agent, Crew, Task
from pydantic import BaseModel


class Blog(BaseModel):
    title: str
    length: int


blogger = Agent(role="Blogger", goal="Write titles", backstory="You blog.", llm="gpt-4o-mini")
title = Task(description="Write a title on {topic}.", expected_output="A title.", agent=blogger, output_pydantic=Blog)
agent = Crew(agents=[blogger], tasks=[title])
