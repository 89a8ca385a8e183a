r"""A team whose provider refuses the key: the error ends the run, and its first line is returned.
---
author: await agent(task)
tasks:
  - question: Greet Lighthouse.
  - question: Greet Submarine.
model:
  - status: 401
    times: 1
calls: 0
result: 'RuntimeError, AuthenticationError: Error code: 401'
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

greeter = AssistantAgent("greeter", model_client=OpenAIChatCompletionClient(model="gpt-4o", max_retries=0))
team = RoundRobinGroupChat([greeter], max_turns=1)


async def agent(task):
    try:
        result = await team.run(task=task["question"])
    except Exception as error:
        return f"{type(error).__name__}, {str(error).splitlines()[0]}"
    return result.messages[-1].to_text()
