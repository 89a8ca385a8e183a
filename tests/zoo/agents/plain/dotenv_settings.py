r"""Model and prompt come from a .env file.
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
  .env: |
    CHAT_MODEL=gpt-4o-mini-custom
    CHAT_PROMPT="You are a teacher."
state: os.environ["CHAT_MODEL"]
"""

import os

from dotenv import load_dotenv
from openai import OpenAI

load_dotenv(os.path.join(os.getcwd(), ".env"))
client = OpenAI()


def agent(task):
    completion = client.chat.completions.create(
        model=os.environ["CHAT_MODEL"],
        messages=[
            {"role": "system", "content": os.getenv("CHAT_PROMPT", "")},
            {"role": "user", "content": task["question"]},
        ],
    )
    return completion.choices[0].message.content
