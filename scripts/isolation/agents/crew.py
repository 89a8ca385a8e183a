"""A crew made once, as CrewAI's first page makes it, and a function that starts it for a question."""

from crewai import LLM, Agent, Crew, Task

model = LLM(model="gpt-4o-mini", api_key="sk-any")
researcher = Agent(role="Researcher", goal="Answer questions", backstory="You are exact.", llm=model)
answer = Task(description="Answer this question: {question}", expected_output="One sentence.", agent=researcher)
crew = Crew(agents=[researcher], tasks=[answer])


def ask(task):
    return crew.kickoff(inputs={"question": task["question"]}).raw
