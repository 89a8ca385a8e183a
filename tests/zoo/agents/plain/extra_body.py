r"""Sampling parameters of another server in extra_body.
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

from openai import OpenAI

client = OpenAI()


def agent(task):
    completion = client.chat.completions.create(
        model="qwen3",
        messages=[{"role": "user", "content": task["question"]}],
        extra_body={"top_k": 20, "repetition_penalty": 1.05, "chat_template_kwargs": {"enable_thinking": False}},
    )
    return completion.choices[0].message.content
