r"""Rate limits that tenacity waits out, with the SDK's own retries off.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 429
    times: 2
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: attempts
"""

import openai
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

client = openai.OpenAI(max_retries=0)
attempts = []


@retry(
    retry=retry_if_exception_type(openai.RateLimitError),
    wait=wait_random_exponential(multiplier=0.001, max=0.02),
    stop=stop_after_attempt(5),
)
def complete(messages):
    attempts.append(len(messages))
    return client.chat.completions.create(model="gpt-4o-mini", messages=messages)


def agent(task):
    return complete([{"role": "user", "content": task["question"]}]).choices[0].message.content
