r"""A function that returns a dataclass.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: '"words": 7'
"""

from dataclasses import dataclass, field

from openai import OpenAI

client = OpenAI()


@dataclass
class Answer:
    text: str
    words: int
    sources: list[str] = field(default_factory=list)


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    text = completion.choices[0].message.content
    return Answer(text, len(text.split()), ["encyclopedia"])
