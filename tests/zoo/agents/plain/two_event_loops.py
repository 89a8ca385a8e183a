r"""One AsyncOpenAI at module level, used in two event loops one after the other.
---
tasks:
  - question: France
  - question: Kenya
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
  - when: river in (\w+)
    say: There are several in \1.
calls: 2
result: [several in France, several in Kenya]
"""

import asyncio

from openai import AsyncOpenAI

client = AsyncOpenAI()


async def ask(text):
    completion = await client.with_options(max_retries=0).chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": text}], extra_headers={"Connection": "close"}
    )
    return completion.choices[0].message.content


def agent(task):
    first = asyncio.run(ask(f"What is the capital of {task['question']}?"))
    second = asyncio.run(ask(f"Name a river in {task['question']}."))
    return [first, second]
