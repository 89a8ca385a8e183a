r"""A crew whose output is streamed: chunks are read from the kickoff, then its result.
---
run: main
author: main(task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: about (\w+)
    say: Long ago all of the \1 were lit by hand.
calls: 1
result: [all of the lighthouses, all of the submarines]
agents: [Teller]
"""

from crewai import Agent, Crew, Task

teller = Agent(role="Teller", goal="Tell", backstory="You tell.", llm="gpt-4o-mini")
tale = Task(description="Tell me about {topic}.", expected_output="A tale.", agent=teller)
crew = Crew(agents=[teller], tasks=[tale], stream=True)


def main(task):
    streaming = crew.kickoff(inputs=task)
    text = "".join(chunk.content for chunk in streaming)
    return {"text": text, "raw": streaming.result.raw}
