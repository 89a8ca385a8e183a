r"""A class whose instances are called with a task.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
run: Assistant
author: Assistant()(task)
"""

from openai import OpenAI


class Assistant:
    def __init__(self):
        self.client = OpenAI()
        self.history = []

    def __call__(self, task):
        self.history.append({"role": "user", "content": task["question"]})
        completion = self.client.chat.completions.create(model="gpt-4o-mini", messages=self.history)
        return completion.choices[0].message.content
