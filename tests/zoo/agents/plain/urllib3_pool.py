r"""The API called with a urllib3 pool manager.
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

import os

import urllib3

http = urllib3.PoolManager()


def agent(task):
    response = http.request(
        "POST",
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json={"model": "gpt-4o-mini", "messages": [{"role": "user", "content": task["question"]}]},
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
        timeout=30,
    )
    return response.json()["choices"][0]["message"]["content"]
