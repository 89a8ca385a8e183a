r"""An assistant that calls tools over several iterations: two at once, one that raises, then an answer.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Convert 4521 francs.
  - question: Convert 7743 francs.
model:
  - role: user
    when: Convert (\d+) francs
    calls:
      - {name: rate, arguments: {currency: francs}}
      - {name: rate, arguments: {currency: doubloons}}
  - role: tool
    seen: Convert (\d+)
    times: 1
    call: {name: multiply, arguments: '{"amount": \1, "rate": 2}'}
  - role: tool
    when: (\d+)
    say: That makes \1 euros.
calls: 3
result: [That makes 9042 euros., That makes 15486 euros.]
agents: [converter]
tools: [rate, multiply]
"""

from typing import Annotated

from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient


def rate(currency: Annotated[str, "the currency's name"]) -> int:
    """Look up a rate."""
    if currency != "francs":
        raise KeyError(currency)
    return 2


async def multiply(amount: int, rate: int) -> int:
    return amount * rate


agent = AssistantAgent(
    "converter",
    model_client=OpenAIChatCompletionClient(model="gpt-4o"),
    tools=[rate, FunctionTool(multiply, description="Multiply two numbers.", strict=True)],
    max_tool_iterations=5,
)
