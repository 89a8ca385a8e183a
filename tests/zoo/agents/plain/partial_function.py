r"""functools.partial over a function with options.
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

from functools import partial

from openai import OpenAI

client = OpenAI()


def ask(model, style, task):
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": f"Answer in {style}."}, {"role": "user", "content": task["question"]}],
    )
    return completion.choices[0].message.content


agent = partial(ask, "gpt-4o-mini", "prose")
