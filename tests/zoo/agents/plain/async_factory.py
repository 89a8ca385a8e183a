r"""An async function without parameters that makes an object with an async run.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
run: make_assistant
author: await (await make_assistant())(task)
"""

from openai import AsyncOpenAI


class Assistant:
    def __init__(self, client):
        self.client = client

    async def __call__(self, task):
        completion = await self.client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
        )
        return completion.choices[0].message.content


async def make_assistant():
    return Assistant(AsyncOpenAI())
