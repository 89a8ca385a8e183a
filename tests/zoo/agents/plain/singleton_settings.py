r"""A singleton that makes its client when it is first used.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: Registry().asked
"""

import threading

from openai import OpenAI


class Registry:
    _instance = None
    _lock = threading.Lock()

    def __new__(cls):
        with cls._lock:
            if cls._instance is None:
                cls._instance = super().__new__(cls)
                cls._instance.client = OpenAI()
                cls._instance.asked = 0
        return cls._instance


def agent(task):
    registry = Registry()
    registry.asked += 1
    completion = registry.client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return completion.choices[0].message.content
