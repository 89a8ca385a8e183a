r"""A team whose conversation is printed by Console.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Say hello to Lighthouse.
  - question: Say hello to Submarine.
model:
  - when: hello to (\w+)
    say: Hello, \1! TERMINATE
calls: 1
result: [Lighthouse, Submarine]
agents: [greeter]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.ui import Console
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    greeter = AssistantAgent("greeter", OpenAIChatCompletionClient(model="gpt-4o"))
    team = RoundRobinGroupChat([greeter], termination_condition=TextMentionTermination("TERMINATE"))
    return await Console(team.run_stream(task=task["question"]))
