r"""A crew at module level that a function kicks off twice, the second time with the first one's result.
---
tasks:
  - product: Lighthouse
  - product: Submarine
model:
  - system: Salesman
    when: pitch for (\w+) lamps for all
    say: \1 lamps for everyone, now.
  - system: Salesman
    when: pitch for (\w+) lamps
    say: '\1 lamps for all'
calls: 2
result: ["Lighthouse lamps for everyone, now.", "Submarine lamps for everyone, now."]
agents: [Salesman]
state: sold
"""

from crewai import Agent, Crew, Task

salesman = Agent(role="Salesman", goal="Sell", backstory="You sell.", llm="gpt-4o-mini")
pitch = Task(description="Write a pitch for {what}.", expected_output="A pitch.", agent=salesman)
crew = Crew(agents=[salesman], tasks=[pitch])
sold = []


def agent(task):
    first = crew.kickoff(inputs={"what": f"{task['product']} lamps"})
    second = crew.kickoff(inputs={"what": first.raw})
    sold.append(task["product"])
    return second.raw
