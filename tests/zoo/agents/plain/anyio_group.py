r"""Calls in an anyio task group and in its worker threads.
---
author: await agent(task)
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

import anyio
import anyio.to_thread
from openai import AsyncOpenAI, OpenAI

asynchronous, synchronous = AsyncOpenAI(), OpenAI()


async def agent(task):
    found = {}

    async def capital():
        messages = [{"role": "user", "content": f"What is the capital of {task['question']}?"}]
        completion = await asynchronous.chat.completions.create(model="gpt-4o-mini", messages=messages)
        found["capital"] = completion.choices[0].message.content

    def ask_river():
        messages = [{"role": "user", "content": f"Name a river in {task['question']}."}]
        return synchronous.chat.completions.create(model="gpt-4o-mini", messages=messages).choices[0].message.content

    async def river():
        found["river"] = await anyio.to_thread.run_sync(ask_river)

    async with anyio.create_task_group() as group:
        group.start_soon(capital)
        group.start_soon(river)
    return found
