# pyright: basic
"""A crew of two: a converter answers a question about a measure, and an editor writes the reply."""

from crewai import LLM, Agent, Crew, Task

llm = LLM(model="gpt-4.1-mini", api_key="sk-your-key-here", temperature=0)

converter = Agent(
    role="converter",
    goal="Work out a measure for a customer abroad.",
    backstory="You know measures of all kinds.",
    llm=llm,
)
editor = Agent(
    role="editor",
    goal="Edit a draft into a reply to the customer.",
    backstory="You write to customers.",
    llm=llm,
)

agent = Crew(
    agents=[converter, editor],
    tasks=[
        Task(description="{question}", expected_output="The measure.", agent=converter),
        Task(description="Edit the draft.", expected_output="The reply.", agent=editor),
    ],
)
