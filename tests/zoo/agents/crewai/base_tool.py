r"""A crew whose agent has a tool derived from BaseTool, with an args_schema and a cache function.
---
author: agent.kickoff(inputs=task)
tasks:
  - number: 4521
  - number: 7743
model:
  - role: user
    when: Double the number (\d+)
    call: {name: multiplier, arguments: '{"first_number": \1, "second_number": 2}'}
  - seen: result is (\d+)
    say: It makes \1.
calls: 2
result: [It makes 9042., It makes 15486.]
agents: [Accountant]
tools: [multiplier]
"""

from crewai import Agent, Crew, Task
from crewai.tools import BaseTool
from pydantic import BaseModel, Field


class MultiplierInput(BaseModel):
    first_number: int = Field(..., description="The first factor.")
    second_number: int = Field(..., description="The second factor.")


class Multiplier(BaseTool):
    name: str = "multiplier"
    description: str = "Multiplies two numbers."
    args_schema: type[BaseModel] = MultiplierInput

    def _run(self, first_number: int, second_number: int) -> str:
        return f"The result is {first_number * second_number}"


def cache_even(args, result):
    return int(result.split()[-1]) % 2 == 0


multiplier = Multiplier()
multiplier.cache_function = cache_even

accountant = Agent(
    role="Accountant", goal="Calculate", backstory="You love numbers.", tools=[multiplier], llm="gpt-4o-mini"
)
double = Task(description="Double the number {number}.", expected_output="A number.", agent=accountant)
agent = Crew(agents=[accountant], tasks=[double])
