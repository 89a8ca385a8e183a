r"""A server error that the SDK's own retry gets over.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 500
    times: 1
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

from openai import OpenAI

client = OpenAI(max_retries=3)


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return completion.choices[0].message.content
