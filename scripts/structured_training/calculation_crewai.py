# pyright: basic
"""A crew of one whose task has a pydantic output: the calculation that a word problem needs."""

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel


class Calculation(BaseModel):
    """The calculation that a word problem needs."""

    expression: str


calculation_agent = Agent(
    role="calculation_agent",
    goal="Answer with the right calculation, in JSON.",
    backstory="You are good at word problems.",
    llm=LLM(model="gpt-4.1-mini", api_key="sk-your-key-here", temperature=0, max_tokens=64),
)

agent = Crew(
    agents=[calculation_agent],
    tasks=[
        Task(
            description="{question}",
            expected_output="The calculation.",
            agent=calculation_agent,
            output_pydantic=Calculation,
        )
    ],
)
