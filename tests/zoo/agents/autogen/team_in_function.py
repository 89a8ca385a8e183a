r"""A team at module level that a function resets and runs, and that keeps count of its runs.
---
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: You pitch
    when: Pitch (\w+)
    say: Everyone wants \1.
  - system: You judge
    when: wants (\w+)
    say: \1 it is.
calls: 2
author: await agent(task)
result: [lighthouses it is., submarines it is.]
agents: [pitcher, judge]
state: runs
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
pitcher = AssistantAgent("pitcher", model_client=model_client, system_message="You pitch products.")
judge = AssistantAgent("judge", model_client=model_client, system_message="You judge pitches.")
team = RoundRobinGroupChat([pitcher, judge], max_turns=2)
runs = []


async def agent(task):
    runs.append(task["topic"])
    await team.reset()
    result = await team.run(task=f"Pitch {task['topic']}.")
    return [message.to_text() for message in result.messages]
