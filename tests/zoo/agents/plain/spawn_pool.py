r"""Calls in a multiprocessing pool of spawned processes.
---
tasks:
  - topics: [apples, apricots]
  - topics: [beetroot, broccoli]
model:
  - when: ^Describe (\w+)
    say: \1 are good.
calls: 2
result: [apricots are good., broccoli are good.]
"""

import multiprocessing

from openai import OpenAI


def ask(topic):
    completion = OpenAI().chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": f"Describe {topic}."}]
    )
    return completion.choices[0].message.content


def agent(task):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(ask, task["topics"])
