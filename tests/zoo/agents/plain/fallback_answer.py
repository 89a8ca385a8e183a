r"""A refused key ends in a fallback text.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 401
    times: 1
  - say: unused
calls: 0
result: "Sorry, AuthenticationError 401: Error code: 401"
not_trained: {}
"""

import openai

client = openai.OpenAI(max_retries=0)


def agent(task):
    try:
        completion = client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
        )
        return completion.choices[0].message.content
    except openai.APIStatusError as error:
        return f"Sorry, {type(error).__name__} {error.status_code}: {error}"
