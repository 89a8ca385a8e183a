r"""Model settings with penalties, over Chat Completions.
---
run: main
author: await main(task)
tasks:
  - question: Describe lighthouses.
  - question: Describe submarines.
model:
  - when: Describe (\w+)
    say: They are \1.
calls: 1
result: [They are lighthouses., They are submarines.]
"""

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI


async def main(task):
    agent = Agent(
        name="Writer",
        instructions="You never repeat yourself.",
        model=OpenAIChatCompletionsModel("gpt-4.1", AsyncOpenAI()),
        model_settings=ModelSettings(frequency_penalty=0.5, presence_penalty=0.2),
    )
    return (await Runner.run(agent, task["question"])).final_output
