r"""A RoundRobinGroupChat of a poet and a critic, which ends when the critic approves.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Write a line about lighthouses.
  - question: Write a line about submarines.
model:
  - system: creative
    when: line about (\w+)
    say: Of \1 I sing, and they are grey.
  - system: critic
    when: and they are grey
    say: Give them another colour.
  - system: creative
    when: another colour
    seen: line about (\w+)
    say: Of \1 I sing, and they are red.
  - system: critic
    when: and they are red
    say: APPROVE
calls: 4
result: [Of lighthouses I sing, Of submarines I sing]
agents: [primary, critic]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-2024-08-06")

primary_agent = AssistantAgent("primary", model_client=model_client, system_message="You are a creative assistant.")
critic_agent = AssistantAgent(
    "critic",
    model_client=model_client,
    system_message="You are a critic. Give feedback. Answer with 'APPROVE' when it has been addressed.",
)
agent = RoundRobinGroupChat([primary_agent, critic_agent], termination_condition=TextMentionTermination("APPROVE"))
