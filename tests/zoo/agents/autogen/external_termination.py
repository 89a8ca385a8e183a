r"""A team that another task ends from outside, by ExternalTermination; then it goes on where it was.
---
run: main
author: await main(task)
tasks:
  - question: Begin with lighthouses.
  - question: Begin with submarines.
model:
  - when: Begin with (\w+)
    say: First come \1.
  - when: (.*)
    say: And then more.
calls: 2
result: [First come lighthouses., First come submarines.]
agents: [one, two]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import ExternalTermination, MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    members = [AssistantAgent(name, model_client=model_client) for name in ("one", "two")]
    external = ExternalTermination()
    team = RoundRobinGroupChat(members, termination_condition=external | MaxMessageTermination(2))
    said, reasons = [], []
    async for message in team.run_stream(task=task["question"]):
        if isinstance(message, TextMessage):
            said.append((message.source, message.content))
    async for message in team.run_stream():
        if isinstance(message, TextMessage):
            said.append((message.source, message.content))
            external.set()
        elif hasattr(message, "stop_reason"):
            reasons.append(message.stop_reason)
    return said, reasons
