r"""A plain function that runs its agent by run_sync.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
agents: [Geographer]
"""

from agents import Agent, Runner

geographer = Agent(name="Geographer", instructions="You know all capitals.", model="gpt-4.1-mini")


def agent(task):
    result = Runner.run_sync(geographer, task["question"])
    return result.final_output
