r"""A function that returns an object that cannot be shown, compared or copied.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: is well known
"""

from openai import OpenAI

client = OpenAI()


class Sealed:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        raise RuntimeError("sealed")

    __str__ = __repr__

    def __eq__(self, other):
        raise RuntimeError("sealed")

    def __reduce__(self):
        raise RuntimeError("sealed")

    __hash__ = None


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return Sealed(completion.choices[0].message.content)
