r"""An agent whose provider is overloaded twice; its client tries again.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Greet Lighthouse.
  - question: Greet Submarine.
model:
  - status: 429
    times: 1
  - status: 503
    times: 1
  - when: Greet (\w+)
    say: Good day, \1.
calls: 1
result: ["Good day, Lighthouse.", "Good day, Submarine."]
agents: [Greeter]
"""

from agents import Agent, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

client = AsyncOpenAI(max_retries=4, timeout=30)
agent = Agent(name="Greeter", instructions="Greet.", model=OpenAIResponsesModel(model="gpt-4.1", openai_client=client))


async def main():
    await Runner.run(agent, "Greet me.")
