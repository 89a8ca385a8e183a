r"""A GraphFlow: a writer, two editors at the same time, and a reviewer who reads both by message filters.
---
author: await agent(task)
tasks:
  - question: Write a paragraph about lighthouses.
  - question: Write a paragraph about submarines.
model:
  - system: Draft
    when: about (\w+)
    say: Draft on \1.
  - system: grammar
    when: Draft on (\w+)
    say: Grammar of \1 is right.
  - system: style
    when: Draft on (\w+)
    say: Style of \1 is right.
  - system: final
    seen: (?=.*Grammar of (\w+))(?=.*Style of)
    say: Final text on \1.
calls: 4
result: [Final text on lighthouses., Final text on submarines.]
agents: [writer, editor1, editor2, final_reviewer]
"""

from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
)
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_ext.models.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(model="gpt-4.1-nano")
writer = AssistantAgent("writer", model_client=client, system_message="Draft a short paragraph.")
editor1 = AssistantAgent("editor1", model_client=client, system_message="Edit the paragraph for grammar.")
editor2 = AssistantAgent("editor2", model_client=client, system_message="Edit the paragraph for style.")
reviewer = AssistantAgent("final_reviewer", model_client=client, system_message="Consolidate into a final version.")
filtered = MessageFilterAgent(
    name="final_reviewer",
    wrapped_agent=reviewer,
    filter=MessageFilterConfig(
        per_source=[
            PerSourceFilter(source="editor1", position="last", count=1),
            PerSourceFilter(source="editor2", position="last", count=1),
        ]
    ),
)

builder = DiGraphBuilder()
builder.add_node(writer).add_node(editor1).add_node(editor2).add_node(filtered)
builder.add_edge(writer, editor1)
builder.add_edge(writer, editor2)
builder.add_edge(editor1, filtered)
builder.add_edge(editor2, filtered)

flow = GraphFlow(participants=builder.get_participants(), graph=builder.build())


async def agent(task):
    result = await flow.run(task=task["question"])
    return {message.source: message.to_text() for message in result.messages}
