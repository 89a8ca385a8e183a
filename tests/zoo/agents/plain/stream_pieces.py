r"""An async generator of dicts, one for each piece of a streamed answer.
---
author: '[piece async for piece in agent(task)]'
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: '"text"'
"""

from openai import AsyncOpenAI

client = AsyncOpenAI()


async def agent(task):
    stream = await client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}], stream=True
    )
    number = 0
    async for chunk in stream:
        delta = chunk.choices[0].delta
        if delta.content:
            number += 1
            yield {"number": number, "text": delta.content}
