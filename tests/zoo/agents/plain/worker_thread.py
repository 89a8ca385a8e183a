r"""A thread that is started at import and takes work from a queue.
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

import queue
import threading

from openai import OpenAI

client = OpenAI()
work = queue.Queue()


def serve():
    while True:
        text, reply = work.get()
        try:
            completion = client.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": text}]
            )
            reply.put(completion.choices[0].message.content)
        except Exception as error:
            reply.put(repr(error))


threading.Thread(target=serve, daemon=True).start()


def agent(task):
    reply = queue.Queue()
    work.put((task["question"], reply))
    return reply.get(timeout=30)
