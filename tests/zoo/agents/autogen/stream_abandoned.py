r"""A streamed run whose reader stops after the first pieces.
---
run: main
author: await main(task)
tasks:
  - question: Count up from Lisbon.
  - question: Count up from Naples.
model:
  - when: from (\w+)
    say: \1, then Marseille, then Genoa, then Trieste, then Bari, then Split.
calls: 1
may_not_be_trained: {client disconnected: 1}
result: ""
agents: [assistant]
"""

from contextlib import aclosing

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    assistant = AssistantAgent("assistant", model_client=model_client, model_client_stream=True)
    text = ""
    async with aclosing(assistant.run_stream(task=task["question"])) as stream:
        async for message in stream:
            if isinstance(message, ModelClientStreamingChunkEvent):
                text += message.content
            if len(text) > 10:
                break
    return text[:10]
