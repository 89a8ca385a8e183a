r"""A team whose state is saved as JSON and loaded into a new team, which goes on with the conversation.
---
author: await agent(task)
tasks:
  - subject: lighthouses
  - subject: submarines
model:
  - when: poem about (\w+)
    say: \1 by the sea.
  - when: last line
    seen: (\w+) by the sea
    say: It was about \1.
calls: 2
result: [It was about lighthouses., It was about submarines.]
agents: [assistant_agent]
"""

import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-2024-08-06")


def make_team() -> RoundRobinGroupChat:
    assistant = AssistantAgent(
        "assistant_agent", system_message="You are a helpful assistant", model_client=model_client
    )
    return RoundRobinGroupChat([assistant], termination_condition=MaxMessageTermination(max_messages=2))


async def agent(task):
    team = make_team()
    await team.run(task=f"Write a poem about {task['subject']}")
    saved = json.dumps(await team.save_state())

    other = make_team()
    await other.load_state(json.loads(saved))
    result = await other.run(task="What was the last line about?")
    return {"answer": result.messages[-1].content, "stop_reason": result.stop_reason}
