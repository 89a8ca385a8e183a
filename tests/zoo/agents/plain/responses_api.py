r"""The Responses API with a previous response.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
  - when: Shorter
    seen: Tell me about (\w+)
    say: In short, \1 are remarkable.
calls: 2
result: [lighthouses are remarkable, submarines are remarkable]
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    first = client.responses.create(
        model="gpt-4.1-mini", instructions="You are a guide.", input=task["question"], store=True
    )
    second = client.responses.create(
        model="gpt-4.1-mini",
        input=[
            {"role": "user", "content": task["question"]},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "Shorter, please."},
        ],
    )
    return second.output_text
