r"""The module-level client of the openai package.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

import openai

openai.max_retries = 1


def agent(task):
    response = openai.chat.completions.create(
        model="gpt-3.5-turbo",
        messages=[{"role": "user", "content": task["question"]}],
        max_tokens=64,
    )
    return response.choices[0].message.content
