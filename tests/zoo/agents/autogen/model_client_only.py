r"""An OpenAIChatCompletionClient used by itself: create, then create_stream.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: You mean the one of \1.
  - when: the one of (\w+), in full
    say: The capital of \1 is well known, in full.
calls: 2
result: [The capital of France is well known, The capital of Kenya is well known]
"""

from autogen_core.models import SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    client = OpenAIChatCompletionClient(model="gpt-4o", temperature=0.2, max_tokens=200)
    messages = [SystemMessage(content="Be brief."), UserMessage(content=task["question"], source="user")]
    result = await client.create(messages)
    country = result.content.rstrip(".").split()[-1]
    messages = [UserMessage(content=f"Say the one of {country}, in full.", source="user")]
    pieces = []
    async for piece in client.create_stream(messages):
        if isinstance(piece, str):
            pieces.append(piece)
        else:
            final = piece
    await client.close()
    return {"pieces": pieces, "content": final.content, "finish": [result.finish_reason, final.finish_reason]}
