r"""A client made when the module is imported, and a function that asks it once.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[
            {"role": "system", "content": "You are a helpful geography teacher."},
            {"role": "user", "content": task["question"]},
        ],
        temperature=0,
    )
    return completion.choices[0].message.content
