r"""A GraphFlow with a loop: a reviewer sends a generator back until it approves, then a summariser ends it.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Brainstorm ways to save lighthouses.
  - question: Brainstorm ways to save submarines.
model:
  - system: Generate
    when: save (\w+)
    say: Paint the \1.
  - system: Review
    when: Paint the
    say: Be more concrete.
  - system: Generate
    when: more concrete
    seen: save (\w+)
    say: Varnish the \1 twice.
  - system: Review
    when: Varnish
    say: APPROVE
  - system: Summarise
    when: APPROVE
    seen: save (\w+)
    say: The idea for \1 is varnish.
calls: 5
result: [The idea for lighthouses is varnish., The idea for submarines is varnish.]
agents: [generator, reviewer, summary]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
generator = AssistantAgent("generator", model_client=model_client, system_message="Generate a list of ideas.")
reviewer = AssistantAgent(
    "reviewer", model_client=model_client, system_message="Review the ideas. Answer APPROVE when they are final."
)
summarizer = AssistantAgent("summary", model_client=model_client, system_message="Summarise the final ideas.")

builder = DiGraphBuilder()
builder.add_node(generator).add_node(reviewer).add_node(summarizer)
builder.add_edge(generator, reviewer)
builder.add_edge(reviewer, summarizer, condition=lambda message: "APPROVE" in message.to_model_text())
builder.add_edge(reviewer, generator, condition=lambda message: "APPROVE" not in message.to_model_text())
builder.set_entry_point(generator)

agent = GraphFlow(
    participants=builder.get_participants(), graph=builder.build(), termination_condition=MaxMessageTermination(12)
)
