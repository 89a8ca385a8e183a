r"""A team of an assistant and a UserProxyAgent whose input function answers for the user.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Write a poem about lighthouses.
  - question: Write a poem about submarines.
model:
  - when: poem about (\w+)
    say: \1, how still you are.
  - when: more cheerful
    seen: poem about (\w+)
    say: \1, how merry you are.
calls: 2
result: ["lighthouses, how merry", "submarines, how merry"]
agents: [assistant]
"""

from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
assistant = AssistantAgent("assistant", model_client=model_client)
answers = ["Make it more cheerful.", "APPROVE"]


def ask_reviewer(prompt: str) -> str:
    return answers.pop(0)


user_proxy = UserProxyAgent("user_proxy", input_func=ask_reviewer)
agent = RoundRobinGroupChat([assistant, user_proxy], termination_condition=TextMentionTermination("APPROVE"))
