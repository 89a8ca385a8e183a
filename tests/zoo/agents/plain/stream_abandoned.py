r"""A streamed answer that is left after its first piece.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known to whoever has been there, and to many others as well.
    held: true
calls: 1
result: The cap
not_trained: {client disconnected: 1}
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    with client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}], stream=True
    ) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                return chunk.choices[0].delta.content
