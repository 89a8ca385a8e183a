r"""An async generator that yields the deltas of a streamed run, over Chat Completions.
---
author: '"".join([piece async for piece in agent(task)])'
tasks:
  - question: Tell me of lighthouses.
  - question: Tell me of submarines.
model:
  - when: of (\w+)
    say: Listen, the \1 were there before us.
calls: 1
result: ["Listen, the lighthouses were", "Listen, the submarines were"]
agents: [Teller]
"""

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

teller = Agent(
    name="Teller",
    instructions="You tell stories.",
    model=OpenAIChatCompletionsModel(model="gpt-4.1-mini", openai_client=AsyncOpenAI()),
)


async def agent(task):
    result = Runner.run_streamed(teller, task["question"])
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta
