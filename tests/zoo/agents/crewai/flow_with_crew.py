r"""A flow that runs a crew in one of its methods and a lone agent in another, made anew each time.
---
run: PoemFlow
author: 'PoemFlow().kickoff(inputs={"subject": task["subject"]})'
tasks:
  - subject: lighthouses
  - subject: submarines
model:
  - system: Poet
    when: poem about (\w+)
    say: O \1!
  - system: Critic
    when: O (\w+)
    say: A fine poem on \1.
calls: 2
result: [A fine poem on lighthouses., A fine poem on submarines.]
agents: [Poet, Critic]
"""

from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, listen, start
from pydantic import BaseModel


class PoemState(BaseModel):
    subject: str = "the sea"
    sentence_count: int = 1
    poem: str = ""


class PoemFlow(Flow[PoemState]):
    @start()
    def count(self):
        self.state.sentence_count = 2

    @listen(count)
    def write(self):
        poet = Agent(role="Poet", goal="Write poems", backstory="You rhyme.", llm="gpt-4o-mini")
        task = Task(
            description="Write a poem about {subject} in {count} sentences.", expected_output="A poem.", agent=poet
        )
        crew = Crew(agents=[poet], tasks=[task])
        result = crew.kickoff(inputs={"subject": self.state.subject, "count": self.state.sentence_count})
        self.state.poem = result.raw

    @listen(write)
    async def criticise(self):
        critic = Agent(role="Critic", goal="Criticise", backstory="You are kind.", llm="gpt-4o-mini")
        result = await critic.kickoff_async(f"Criticise. {self.state.poem}")
        return result.raw
