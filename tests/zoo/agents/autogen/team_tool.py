r"""An assistant whose tool is a team of a writer and a reviewer.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: I want a story about lighthouses.
  - question: I want a story about submarines.
model:
  - system: Use the writing team
    role: user
    when: story about (\w+)
    call: {name: writing_team, arguments: {task: 'Write about \1.'}}
  - system: Write well
    when: Write about (\w+)
    say: It was night, and \1 slept.
  - system: Review
    say: Fine. TERMINATE
  - system: Use the writing team
    role: tool
    seen: and (\w+) slept
    say: Here you are; \1 slept.
calls: 4
result: [Here you are; lighthouses slept., Here you are; submarines slept.]
agents: [assistant, writer, reviewer]
tools: [writing_team]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import SourceMatchTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import TeamTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-mini", parallel_tool_calls=False)
plain_client = OpenAIChatCompletionClient(model="gpt-4o-mini")

writer = AssistantAgent("writer", model_client=plain_client, system_message="Write well.")
reviewer = AssistantAgent("reviewer", model_client=plain_client, system_message="Review the text.")
team = RoundRobinGroupChat([writer, reviewer], termination_condition=SourceMatchTermination(sources=["reviewer"]))
tool = TeamTool(team=team, name="writing_team", description="A tool for writing.")

agent = AssistantAgent(
    "assistant",
    model_client=model_client,
    system_message="Use the writing team for texts.",
    tools=[tool],
    reflect_on_tool_use=True,
)
