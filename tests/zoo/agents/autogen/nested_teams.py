r"""A team whose members are an assistant and another team.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Write about lighthouses.
  - question: Write about submarines.
model:
  - system: You write
    when: about (\w+)
    say: Text on \1.
  - system: You review
    when: Text on (\w+)
    say: I like \1.
  - system: You publish
    when: I like (\w+)
    say: Published, \1.
calls: 3
result: ["Published, lighthouses.", "Published, submarines."]
agents: [writer, reviewer, publisher]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(model="gpt-4o")
writer = AssistantAgent("writer", client, system_message="You write.")
reviewer = AssistantAgent("reviewer", client, system_message="You review.")
publisher = AssistantAgent("publisher", client, system_message="You publish.")
inner_team = RoundRobinGroupChat(
    [writer, reviewer], termination_condition=MaxMessageTermination(3), name="inner", description="Writes."
)
agent = RoundRobinGroupChat([inner_team, publisher], termination_condition=TextMentionTermination("Published"))
