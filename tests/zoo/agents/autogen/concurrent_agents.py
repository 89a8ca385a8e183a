r"""Several assistants at the same time by asyncio.gather, and one that puts their answers together.
---
author: await agent(task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: You are a historian
    when: About (\w+)
    say: \1 are old.
  - system: You are an engineer
    when: About (\w+)
    say: \1 are strong.
  - system: You are a painter
    when: About (\w+)
    say: \1 are blue.
  - system: You combine
    when: (\w+) are old. \w+ are strong. \w+ are blue.
    say: \1 are old, strong and blue.
calls: 4
result: ["lighthouses are old, strong and blue.", "submarines are old, strong and blue."]
agents: [historian, engineer, painter, combiner]
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(model="gpt-4o-mini")


async def ask(name, instructions, text):
    expert = AssistantAgent(name, model_client=client, system_message=instructions)
    return (await expert.run(task=text)).messages[-1].content


async def agent(task):
    text = f"About {task['topic']}?"
    answers = await asyncio.gather(
        ask("historian", "You are a historian.", text),
        ask("engineer", "You are an engineer.", text),
        ask("painter", "You are a painter.", text),
    )
    return await ask("combiner", "You combine answers.", " ".join(answers))
