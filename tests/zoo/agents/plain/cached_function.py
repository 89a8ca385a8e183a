r"""Answers cached with lru_cache, and asked for twice.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: ask.cache_info().hits
"""

from functools import lru_cache

from openai import OpenAI

client = OpenAI()


@lru_cache(maxsize=100)
def ask(text):
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


def agent(task):
    return [ask(task["question"]), ask(task["question"])]
