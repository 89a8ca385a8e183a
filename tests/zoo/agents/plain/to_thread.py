r"""asyncio.to_thread and loop.run_in_executor with a client of each kind.
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

import asyncio

from openai import OpenAI

client = OpenAI()


def ask(text):
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


async def agent(task):
    loop = asyncio.get_running_loop()
    capital = asyncio.to_thread(ask, f"What is the capital of {task['question']}?")
    river = loop.run_in_executor(None, ask, f"Name a river in {task['question']}.")
    return {"capital": await capital, "river": await river}
