r"""A team that ends by one of several conditions: a function call, a limit of tokens and time, a count, a custom one.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Improve the sentence on lighthouses.
  - question: Improve the sentence on submarines.
model:
  - system: primary
    when: sentence on (\w+)
    say: All \1 are good.
  - system: feedback
    when: are good\.$
    say: Say why.
  - system: primary
    when: Say why
    seen: sentence on (\w+)
    say: All \1 are good as they last.
  - system: feedback
    when: as they last
    call: {name: approve}
calls: 4
result: approve
agents: [primary, critic]
tools: [approve]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import (
    FunctionalTermination,
    FunctionCallTermination,
    MaxMessageTermination,
    StopMessageTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


def approve() -> None:
    """Approve the message when all feedbacks have been addressed."""


def gives_up(messages) -> bool:
    return any(isinstance(message, TextMessage) and "I give up" in message.content for message in messages)


model_client = OpenAIChatCompletionClient(model="gpt-4o")
primary_agent = AssistantAgent("primary", model_client=model_client, system_message="You are the primary assistant.")
critic_agent = AssistantAgent(
    "critic",
    model_client=model_client,
    tools=[approve],
    system_message="Provide constructive feedback. Use the approve tool when it has been addressed.",
)
budget = TokenUsageTermination(max_total_token=1_000_000) | TimeoutTermination(timeout_seconds=600)
agent = RoundRobinGroupChat(
    [primary_agent, critic_agent],
    termination_condition=FunctionCallTermination(function_name="approve")
    | FunctionalTermination(gives_up)
    | (StopMessageTermination() & MaxMessageTermination(5))
    | MaxMessageTermination(20)
    | budget,
)
