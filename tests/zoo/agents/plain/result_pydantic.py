r"""A function that returns a pydantic model.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: '"certain": true'
"""

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI()


class Answer(BaseModel):
    text: str
    certain: bool = True


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return Answer(text=completion.choices[0].message.content)
