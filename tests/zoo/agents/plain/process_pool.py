r"""A ProcessPoolExecutor for the calls.
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
from concurrent.futures import ProcessPoolExecutor

from openai import OpenAI


def ask(topic):
    completion = OpenAI().chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": f"Describe {topic}."}]
    )
    return completion.choices[0].message.content


def agent(task):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(ask, task["topics"]))
