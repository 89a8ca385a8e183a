r"""A hard-coded base URL, and a client for HTTP/2.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
hosts: ['api.openai.com:443']
author: await agent(task)
"""

import httpx
from openai import AsyncOpenAI

client = AsyncOpenAI(
    base_url="https://api.openai.com/v1", api_key="sk-placeholder", http_client=httpx.AsyncClient(http2=True)
)


async def agent(task):
    completion = await client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return completion.choices[0].message.content
