r"""A SelectorGroupChat with a function that chooses the next speaker, and one that filters the candidates.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Is the bridge in Porto longer than the one in Lyon?
  - question: Is the tower in Pisa taller than the one in Delft?
model:
  - system: planning
    when: in (\w+) .* in (\w+)
    say: Compare \1 and \2.
  - system: You write
    when: Compare (\w+) and (\w+)
    say: \1 wins over \2.
  - system: You check
    when: (\w+) wins
    say: Checked, \1 it is. DONE
calls: 3
result: [Porto it is, Pisa it is]
agents: [planning_agent, writer, checker]
"""

from collections.abc import Sequence

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
planning_agent = AssistantAgent("planning_agent", model_client, system_message="You are a planning agent.")
writer = AssistantAgent("writer", model_client, system_message="You write the answer.")
checker = AssistantAgent("checker", model_client, system_message="You check the answer.")


def selector_func(messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> str | None:
    order = {"user": "planning_agent", "planning_agent": "writer", "writer": "checker"}
    return order.get(messages[-1].source, "planning_agent")


agent = SelectorGroupChat(
    [planning_agent, writer, checker],
    model_client=model_client,
    termination_condition=TextMentionTermination("DONE"),
    selector_func=selector_func,
)
