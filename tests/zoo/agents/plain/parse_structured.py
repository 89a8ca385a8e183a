r"""chat.completions.parse with a pydantic model.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: '{"country": "\1", "known": true}'
calls: 1
result: ['"country": "France"', '"country": "Kenya"']
"""

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI()


class Capital(BaseModel):
    country: str
    known: bool


def agent(task):
    completion = client.chat.completions.parse(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}], response_format=Capital
    )
    return completion.choices[0].message.parsed
