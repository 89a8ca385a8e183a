r"""Agents with templates of their own for the prompts, and one without a system message.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: SYSTEM.*Short.*line on (\w+)
    say: \1.
  - when: You are Long.*Stretch
    seen: (lighthouses|submarines)\.
    say: Oh, \1, and again \1.
calls: 2
result: ["Oh, lighthouses, and again", "Oh, submarines, and again"]
agents: [Short, Long]
"""

from crewai import Agent, Crew, Task

short = Agent(
    role="Short",
    goal="Be short",
    backstory="You are short.",
    llm="gpt-4o-mini",
    system_template="<|SYSTEM|>{{ .System }}<|END|>",
    prompt_template="<|USER|>{{ .Prompt }}<|END|>",
    response_template="<|ASSISTANT|>{{ .Response }}<|END|>",
)
long = Agent(role="Long", goal="Be long", backstory="You go on.", llm="gpt-4o-mini", use_system_prompt=False)
line = Task(description="Write a line on {topic}.", expected_output="A line.", agent=short)
stretch = Task(description="Stretch it.", expected_output="A longer line.", agent=long, human_input=False)
agent = Crew(agents=[short, long], tasks=[line, stretch])
