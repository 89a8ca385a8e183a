r"""A function of the question itself, with an option.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: agent(task["question"])
"""

from openai import OpenAI

client = OpenAI()


def agent(question: str, model: str = "gpt-4o-mini") -> str:
    completion = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    return completion.choices[0].message.content
