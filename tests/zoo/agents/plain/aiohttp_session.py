r"""Two calls at once with aiohttp.
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
import os

import aiohttp


async def ask(session, text):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    async with session.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body) as response:
        response.raise_for_status()
        return (await response.json())["choices"][0]["message"]["content"]


async def agent(task):
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        return await asyncio.gather(
            ask(session, f"What is the capital of {task['question']}?"),
            ask(session, f"Name a river in {task['question']}."),
        )
