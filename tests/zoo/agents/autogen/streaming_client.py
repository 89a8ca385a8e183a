r"""An assistant whose model client streams, read piece by piece from run_stream.
---
run: main
author: await main(task)
tasks:
  - question: Name two cities by the sea, Lisbon.
  - question: Name two cities by the sea, Naples.
model:
  - when: by the sea, (\w+)
    say: One of them is \1, and the other one is Marseille.
calls: 1
result: [One of them is Lisbon, One of them is Naples]
agents: [assistant]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    assistant = AssistantAgent(
        name="assistant",
        model_client=model_client,
        system_message="You are a helpful assistant.",
        model_client_stream=True,
    )
    pieces, last = [], None
    async for message in assistant.run_stream(task=task["question"]):
        if isinstance(message, ModelClientStreamingChunkEvent):
            pieces.append(message.content)
        elif isinstance(message, TaskResult):
            last = message
    return {"text": "".join(pieces), "many": len(pieces) > 1, "final": last.messages[-1].to_text()}
