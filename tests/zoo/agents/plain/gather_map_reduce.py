r"""Map and reduce with asyncio.gather under a semaphore.
---
tasks:
  - topics: [apples, apricots, avocados]
  - topics: [beetroot, broccoli, beans]
model:
  - when: ^Describe (\w+)
    say: (\1 are good)
  - when: ^Combine
    seen: \((\w+) are good\)
    say: Eat \1 and more.
calls: 4
result: [Eat apples and more., Eat beetroot and more.]
author: await agent(task)
"""

import asyncio

from openai import AsyncOpenAI

client = AsyncOpenAI()
limit = asyncio.Semaphore(2)


async def ask(text):
    async with limit:
        completion = await client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": text}]
        )
    return completion.choices[0].message.content


async def agent(task):
    parts = await asyncio.gather(*(ask(f"Describe {topic}.") for topic in task["topics"]))
    return await ask("Combine: " + " ".join(parts))
