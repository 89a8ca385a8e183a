r"""A plain function that runs its own event loop.
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
"""

import asyncio

from openai import AsyncOpenAI


async def ask(client, text):
    completion = await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


async def main(topics):
    async with AsyncOpenAI() as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(client, f"Describe {topic}.")) for topic in topics]
        return await ask(client, "Combine: " + " ".join(task.result() for task in tasks))


def agent(task):
    return asyncio.run(main(task["topics"]))
