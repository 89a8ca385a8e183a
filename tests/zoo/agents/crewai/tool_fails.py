r"""A crew whose tool raises at first; the agent reads the error and calls it otherwise.
---
author: agent.kickoff(inputs=task)
tasks:
  - word: Lighthouse
  - word: Submarine
model:
  - role: user
    when: Count the letters of (\w+)
    call: {name: count_letters, arguments: {word: '\1!'}}
  - seen: only letters.*has (\d+) letters
    say: They are \1.
  - seen: letters of (\w+).*only letters
    call: {name: count_letters, arguments: {word: \1}}
calls: 3
result: [They are 10., They are 9.]
agents: [Counter]
tools: [count_letters]
"""

from crewai import Agent, Crew, Task
from crewai.tools import tool


@tool
def count_letters(word: str) -> str:
    """Count the letters of a word."""
    if not word.isalpha():
        raise ValueError("give only letters")
    return f"It has {len(word)} letters"


counter = Agent(role="Counter", goal="Count", backstory="You count.", tools=[count_letters], llm="gpt-4o-mini")
count = Task(description="Count the letters of {word}.", expected_output="A number.", agent=counter)
agent = Crew(agents=[counter], tasks=[count])
