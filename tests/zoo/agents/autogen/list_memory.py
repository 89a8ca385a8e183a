r"""An assistant with a ListMemory of the user's preferences, which is updated before each run.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - seen: weather in (\w+)
    system: metric units
    call: {name: get_weather, arguments: {city: \1, units: metric}}
calls: 1
result: [The weather in Lisbon is 23 °C., The weather in Oslo is 23 °C.]
agents: [assistant_agent]
tools: [get_weather]
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_ext.models.openai import OpenAIChatCompletionClient

user_memory = ListMemory(name="preferences")


async def remember() -> None:
    await user_memory.add(MemoryContent(content="Use metric units.", mime_type=MemoryMimeType.TEXT))
    await user_memory.add(MemoryContent(content="Meals must be vegan.", mime_type=MemoryMimeType.TEXT))


asyncio.run(remember())


async def get_weather(city: str, units: str = "imperial") -> str:
    if units == "imperial":
        return f"The weather in {city} is 73 °F."
    return f"The weather in {city} is 23 °C."


agent = AssistantAgent(
    name="assistant_agent",
    model_client=OpenAIChatCompletionClient(model="gpt-4o-2024-08-06"),
    tools=[get_weather],
    memory=[user_memory],
)
