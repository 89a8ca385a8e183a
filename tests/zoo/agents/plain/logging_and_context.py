r"""Logging configured at import, and a context variable for the request's id.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: "[request_id.get(), len(logging.getLogger().handlers)]"
"""

import contextvars
import logging
import sys

from openai import OpenAI

logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", force=True)
logger = logging.getLogger("assistant")
logger.setLevel(logging.INFO)
request_id = contextvars.ContextVar("request_id", default="none")
client = OpenAI()


def ask(text):
    logger.info("request %s asks", request_id.get())
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


def agent(task):
    token = request_id.set(f"r{len(task['question'])}")
    try:
        return ask(task["question"])
    finally:
        request_id.reset(token)
