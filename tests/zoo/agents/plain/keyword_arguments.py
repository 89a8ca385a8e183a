r"""A function with **kwargs.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: agent(**task)
"""

from openai import OpenAI

client = OpenAI()


def agent(**kwargs):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": kwargs["question"]}]
    )
    return completion.choices[0].message.content
