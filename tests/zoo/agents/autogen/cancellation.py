r"""A streamed answer that a cancellation token ends after its first piece; after a reset the agent answers.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Think about lighthouses.
  - question: Think about submarines.
model:
  - when: about (\w+)
    say: Let me see, \1, what could one say about those that has not been said?
    times: 1
  - when: about (\w+)
    say: There is much to think about \1.
calls: 2
result: [much to think about lighthouses, much to think about submarines]
agents: [thinker]
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_core import CancellationToken
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    thinker = AssistantAgent("thinker", model_client=model_client, model_client_stream=True)
    token = CancellationToken()
    message = TextMessage(content=task["question"], source="user")
    first = "answered"
    try:
        async for event in thinker.on_messages_stream([message], token):
            if isinstance(event, ModelClientStreamingChunkEvent):
                token.cancel()
    except asyncio.CancelledError:
        first = "cancelled"
    await thinker.on_reset(CancellationToken())
    response = await thinker.on_messages([message], CancellationToken())
    return first, response.chat_message.to_text()
