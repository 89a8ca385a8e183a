# pyright: basic
"""A crew of one whose task has a pydantic output: the sum of two numbers."""

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


sums_agent = Agent(
    role="sums_agent",
    goal="Answer with the right result, in JSON.",
    backstory="You are good at sums.",
    llm=LLM(model="gpt-4.1-mini", api_key="sk-your-key-here", temperature=0),
)

agent = Crew(
    agents=[sums_agent],
    tasks=[
        Task(
            description="{question}",
            expected_output="The result.",
            agent=sums_agent,
            output_pydantic=Solution,
        )
    ],
)
