r"""An async function that opens a client for each question.
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

from openai import AsyncOpenAI


async def agent(task):
    async with AsyncOpenAI() as client:
        completion = await client.chat.completions.create(
            model="gpt-4.1-mini", messages=[{"role": "user", "content": task["question"]}]
        )
    return completion.choices[0].message.content
