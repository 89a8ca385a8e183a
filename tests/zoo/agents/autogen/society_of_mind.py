r"""A SocietyOfMindAgent around a team of two, followed by a translator.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Write a short story about lighthouses.
  - question: Write a short story about submarines.
model:
  - system: You are a writer
    when: story about (\w+)
    say: Once upon a time there were two \1.
  - system: You are an editor
    say: APPROVE
  - system: Earlier you were asked
    seen: were two (\w+)
    say: There were two \1 and all was well.
  - system: Translate
    when: were two (\w+)
    say: Hubo dos \1.
calls: 4
result: [Hubo dos lighthouses., Hubo dos submarines.]
agents: [assistant1, assistant2, society_of_mind, assistant3]
"""

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o")
writer = AssistantAgent("assistant1", model_client=model_client, system_message="You are a writer, write well.")
editor = AssistantAgent(
    "assistant2", model_client=model_client, system_message="You are an editor. Answer 'APPROVE' when it is good."
)
inner_team = RoundRobinGroupChat([writer, editor], termination_condition=TextMentionTermination("APPROVE"))
society_of_mind_agent = SocietyOfMindAgent("society_of_mind", team=inner_team, model_client=model_client)
translator = AssistantAgent("assistant3", model_client=model_client, system_message="Translate the text to Spanish.")
agent = RoundRobinGroupChat([society_of_mind_agent, translator], max_turns=2)
