r"""A client that waits as long as the Retry-After header says, and raises in the end.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 429
    times: 3
  - say: never
calls: 0
raises: "RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached.'"
"""

from openai import OpenAI

client = OpenAI(max_retries=2)


def agent(task):
    return (
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}])
        .choices[0]
        .message.content
    )
