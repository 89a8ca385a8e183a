r"""A generator that yields its steps and returns the answer.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: run(task)
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    yield {"step": "asking"}
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    yield {"step": "answered"}
    return completion.choices[0].message.content


def run(task):
    steps = agent(task)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
