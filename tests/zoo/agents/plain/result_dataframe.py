r"""A function that returns a DataFrame.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: well
"""

import pandas as pd
from openai import OpenAI

client = OpenAI()


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    words = completion.choices[0].message.content.split()
    return pd.DataFrame({"word": words, "length": [len(word) for word in words]})
