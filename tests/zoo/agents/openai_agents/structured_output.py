r"""An agent whose output is a pydantic model, by output_type.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Lighthouse day is on Friday.
  - question: Submarine day is on Friday.
model:
  - when: (\w+) day
    say: '{"name": "\1 day", "date": "Friday", "participants": []}'
calls: 1
result: [Lighthouse day, Submarine day]
"""

from agents import Agent, Runner
from pydantic import BaseModel


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


agent = Agent(name="Calendar extractor", instructions="Extract calendar events from text", output_type=CalendarEvent)


async def main():
    await Runner.run(agent, "Lunch is on Friday.")
