r"""A Python program started with subprocess makes the call.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]

files:
  ask.py: |
    import sys
    from openai import OpenAI
    answer = OpenAI().chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": sys.stdin.read()}])
    print(answer.choices[0].message.content)
"""

import subprocess
import sys


def agent(task):
    done = subprocess.run(
        [sys.executable, "ask.py"], input=task["question"], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip()
