r"""A function of several columns of a row.
---
author: agent(**task)
tasks:
  - {context: Paris is large., question: "Is Paris large?", id: 17}
  - {context: Nairobi is high., question: "Is Nairobi high?", id: 18}
model:
  - when: Is (\w+)
    say: Yes, \1 is.
calls: 1
result: ["17: Yes, Paris is.", "18: Yes, Nairobi is."]
"""

from openai import OpenAI

client = OpenAI()


def agent(question: str, context: str, id: int) -> str:
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": f"{context}\n{question}"}]
    )
    return f"{id}: {completion.choices[0].message.content}"
