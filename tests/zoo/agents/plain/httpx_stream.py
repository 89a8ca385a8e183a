r"""Server-sent events read line by line with httpx.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: await agent(task)
"""

import json
import os

import httpx


async def agent(task):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": task["question"]}], "stream": True}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    text = ""
    async with httpx.AsyncClient(base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=30) as client:
        async with client.stream("POST", "/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text
