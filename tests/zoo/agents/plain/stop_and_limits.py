r"""max_tokens, stop, seed, user and metadata.
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
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": task["question"]}],
        max_tokens=100,
        stop=["###"],
        seed=7,
        top_p=1,
        user="zoologist",
        metadata={"team": "zoology"},
    )
    return completion.choices[0].message.content, completion.choices[0].finish_reason
